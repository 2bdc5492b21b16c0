"""Strategy and reward_shaping `s_grpo_proposed`."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import group, inputs
from vlmrl.protocols import GuidingStrategy
from vlmrl.types import Guidance, HintRound
from vlmrl.zoo.reward_shaping.s_grpo_proposed import s_grpo_proposed as shaping
from vlmrl.zoo.strategy.early_exit import beginnings, exit_question, s_grpo_proposed

WHOLE = "<think>a b c d e f</think><answer>x</answer>"


def test_beginnings_part_a_thought():
    assert beginnings("a b c d e f", 2) == ["a b", "a b c d"]
    assert beginnings("a b", 5) == ["a"]
    assert beginnings("a", 3) == []
    assert beginnings("", 3) == []


def test_s_grpo_proposed_asks_for_answers_along_one_thought():
    strategy, mine = s_grpo_proposed(exits=2), group([WHOLE])
    assert isinstance(strategy, GuidingStrategy)
    assert strategy.sampled(8) == 1
    requests = strategy.more(mine, [1.0], [], step=0)
    assert [(r.question, r.tier, r.rows, r.writes) for r in requests] == [
        (exit_question("When?", "a b"), 1, 1, False),
        (exit_question("When?", "a b c d"), 2, 1, False),
    ]
    rounds = []
    for request in reversed(requests):
        guidance = Guidance(question=request.question, tier=request.tier)
        row = dataclasses.replace(group([f"exit {request.tier}"]).rollouts[0], provenance="guided", guidance=guidance)
        rounds.append(HintRound(request=request, rollouts=(row,), rewards=(0.0,)))
    assert strategy.more(mine, [1.0], rounds, step=0) == []
    out = strategy.merge(mine, [1.0], rounds)
    assert [(r.k, r.text) for r in out.rollouts] == [(0, WHOLE), (1, "exit 1"), (2, "exit 2")]
    assert strategy.more(group(["no thought"]), [0.0], [], step=0) == []
    assert strategy.merge(mine, [1.0], []) is mine
    with pytest.raises(ValueError, match="exits"):
        s_grpo_proposed(exits=0)


def shaped(rewards, questions, groups=None, valid=None):
    x = inputs([(r, 0 if groups is None else groups[i], True if valid is None else valid[i]) for i, r in enumerate(rewards)])
    x = dataclasses.replace(x, question_N=torch.tensor(questions))
    return shaping(x.rewards_NK, x.valid_N, x, reward="task")[:, 0].tolist()


def test_s_grpo_proposed_decay_by_hand():
    # exits 1 to 4 and the whole thought (question 0): wrong, right, wrong, right, right
    assert shaped([1.0, 0.0, 1.0, 0.0, 1.0], [0, 1, 2, 3, 4]) == [0.25, 0.0, 1.0, 0.0, 0.5]
    assert shaped([1.0, 0.0, 0.0], [0, 1, 2]) == [1.0, 0.0, 0.0]
    assert shaped([1.0, 1.0, 1.0, 1.0], [0, 1, 0, 1], groups=[0, 0, 1, 1]) == [0.5, 1.0, 0.5, 1.0]
    assert shaped([1.0, 1.0, 1.0], [0, 1, 2], valid=[True, False, True])[::2] == [0.5, 1.0], "what was not judged does not count"
