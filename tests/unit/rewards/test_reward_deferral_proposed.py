"""Reward `deferral_proposed` and strategy `expert_answers_proposed`."""

from __future__ import annotations

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.deferral_proposed import deferral_proposed
from vlmrl.rollout.strategy.expert import expert_answers_proposed

CTX = RewardContext()
ASKS = "<think>hard</think><answer>Ask an  expert</answer>"
RIGHT, WRONG = ("<think>t</think><answer>3.0 to 5.0</answer>", "<think>t</think><answer>1 to 2</answer>")


def test_deferral_proposed_pays_less_than_being_right_and_more_than_being_wrong():
    assert deferral_proposed(group([RIGHT, WRONG, ASKS, "ask an expert"]), CTX, cost=0.3) == pytest.approx([1.0, 0.0, 0.7, 0.0])
    assert deferral_proposed(group([ASKS]), CTX, word="help") == [0.0]
    assert deferral_proposed(group([RIGHT]), CTX, check="math") == [None]
    with pytest.raises(ValueError, match="cost"):
        deferral_proposed(group([RIGHT]), CTX, cost=2.0)


def characters(text):
    return tuple(map(ord, text))


def nothing(group):
    return [None] * len(group.rollouts)


def test_expert_answers_proposed_come_where_they_were_asked_for():
    strategy, of = expert_answers_proposed(), sample(thought="look")
    assert strategy.sampled(8) == 7
    asked = strategy.complete(group([WRONG, ASKS], of), nothing, characters)
    assert [r.provenance for r in asked.rollouts] == ["policy", "policy", "ground_truth"]
    assert asked.rollouts[2].text == "<think>look</think><answer>3.0 to 5.0</answer>"
    alone = group([WRONG, RIGHT], of)
    assert strategy.complete(alone, nothing, characters) is alone
    unsolved = group([ASKS])
    assert strategy.complete(unsolved, nothing, characters) is unsolved, "the row has no thought to show"
    with pytest.raises(ValueError, match="word"):
        expert_answers_proposed(word=" ")
