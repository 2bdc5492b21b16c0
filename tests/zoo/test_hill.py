"""Strategy `hill_proposed`, and what gives its hints a reward."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from tests.support.builders import group, inputs, sample
from vlmrl.algo.rules import needs_strategy
from vlmrl.protocols import GuidingStrategy
from vlmrl.types import Guidance, HintRequest, HintRound
from vlmrl.zoo.reward_shaping.hill_proposed import hill_proposed as hint_shaping
from vlmrl.zoo.reward_shaping.hill_proposed import hint_reward
from vlmrl.zoo.strategy.hill import hill_proposed
from vlmrl.zoo.texts import answers_of_texts


def written(text):
    return f"<think>t</think><answer>{text}</answer>"


def rounds_of(requests: list[HintRequest], texts: list[list[str]]) -> list[HintRound]:
    """What came of requests: texts of each."""
    out: list[HintRound] = []
    for request, made in zip(requests, texts, strict=True):
        guidance = Guidance(question=request.question, tier=request.tier)
        rows = tuple(dataclasses.replace(r, provenance="guided", guidance=guidance) for r in group(made).rollouts)
        out.append(HintRound(request=request, rollouts=rows, rewards=(0.0,) * len(rows)))
    return out


def test_hill_proposed_hints_where_everybody_failed():
    strategy, mine = hill_proposed(hints=3), group(["wrong", "bad"], sample(thought="at the door"))
    assert isinstance(strategy, GuidingStrategy)
    assert strategy.sampled(2) == 2
    assert strategy.more(mine, [0.0, 1.0], [], step=0) == []
    [asked] = strategy.more(mine, [None, 0.0], [], step=0)
    assert (asked.tier, asked.rows, asked.writes) == (1, 3, False)
    assert "Reference solution: at the door" in asked.question
    assert "failed:\nbad\n" in asked.question
    rounds = rounds_of([asked], [[written("look at the door"), "no tags", written("it is 3.0 to 5.0")]])
    answers = strategy.more(mine, [0.0, 0.0], rounds, step=0)
    assert [(a.question, a.tier, a.rows) for a in answers] == [("When?\nHint: look at the door", 2, 2)], "the others cannot be used"
    rounds += rounds_of(answers, [["x", "y"]])
    assert strategy.more(mine, [0.0, 0.0], rounds, step=0) == []
    out = strategy.merge(mine, [0.0, 0.0], rounds)
    assert [(r.k, r.guidance and r.guidance.tier) for r in out.rollouts] == [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)]
    assert {r.guidance.train for r in out.rollouts if r.guidance} == {"guided"}


def test_hill_proposed_without_an_answer_leaves_the_group():
    strategy, mine = hill_proposed(), group(["wrong", "bad"])
    [asked] = strategy.more(mine, [0.0, 0.0], [], step=0)
    rounds = rounds_of([asked], [["no tags"] * 4])
    assert strategy.more(mine, [0.0, 0.0], rounds, step=0) == []
    assert strategy.merge(mine, [0.0, 0.0], rounds) is mine
    assert strategy.more(mine, [0.0, 0.0], [HintRound(request=asked, problem="overlong")], step=0) == []
    with pytest.raises(ValueError, match="hints"):
        hill_proposed(hints=1)


def step(rewards, questions, *, groups, reliance):
    x = inputs([(r, groups[n], True) for n, r in enumerate(rewards)])
    provided = {"reliance_N": torch.tensor(reliance, dtype=torch.float64)}
    return dataclasses.replace(x, question_N=torch.tensor(questions), provided=provided)


def test_answers_belong_to_texts_by_their_order():
    found = answers_of_texts(torch.tensor([7, 7, 7, 7, 3, 3]), torch.tensor([1, 1, 3, 3, 1, 2]))
    assert found == [(0, []), (1, [2, 3]), (4, [5])]


def test_hill_proposed_by_hand():
    # the specification's example: p 1/4 of 8, D -0.15, T 0.3
    assert hint_reward(2, 8, -0.15, 0.3) == pytest.approx(0.8999 * 0.6065, abs=1e-4)
    assert [hint_reward(n, 4, 0.0, 0.3) for n in (0, 4)] == [0.0, 0.0]
    assert hint_reward(2, 4, 0.5, 0.3) == hint_reward(2, 4, 0.0, 0.3) == pytest.approx(1 - 2 / 16), "no bonus for what would come anyway"
    assert hint_reward(2, 4, -0.6, 0.3) < hint_reward(2, 4, -0.3, 0.3)
    nan = float("nan")
    x = step([0.0, 0.0, 1.0, 0.0, 0.4], [1, 1, 2, 2, 0], groups=[0, 0, 0, 0, 1], reliance=[0.0, 0.0, -0.3, -9.0, nan])
    out = hint_shaping(x.rewards_NK, x.valid_N, x, reward="task")[:, 0].tolist()
    assert out == pytest.approx([0.5 * 0.36788, -0.2, 1.0, 0.0, 0.4], abs=1e-4)
    with pytest.raises(ValueError, match="temperature"):
        hint_shaping(x.rewards_NK, x.valid_N, x, reward="task", temperature=0.0)


def test_what_reads_a_strategy_is_refused_without_it():
    rule = needs_strategy("reward_shaping 'm'", "s")

    def stage(name):
        return SimpleNamespace(rollout=SimpleNamespace(strategy=SimpleNamespace(name=name)))

    assert list(rule({}, stage("s"))) == list(rule({}, SimpleNamespace())) == []
    [text] = rule({}, stage("plain"))
    assert "strategy 's'" in text
    assert "'plain'" in text
