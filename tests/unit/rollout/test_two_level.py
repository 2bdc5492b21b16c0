"""Strategies `hill_proposed` and `himac_proposed`, and what gives their texts a reward."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from tests.support.builders import group, inputs, sample
from vlmrl.algo.advantage.advevo_proposed import advevo_proposed as public_baseline
from vlmrl.algo.reward_shaping.advevo_proposed import advevo_proposed as attack_shaping
from vlmrl.algo.reward_shaping.hill_proposed import hill_proposed as hint_shaping
from vlmrl.algo.reward_shaping.hill_proposed import hint_reward
from vlmrl.algo.reward_shaping.himac_proposed import himac_proposed as plan_shaping
from vlmrl.algo.reweight.himac_proposed import himac_proposed as phases
from vlmrl.algo.rules import needs_strategy
from vlmrl.algo.texts import answers_of_texts
from vlmrl.protocols import GuidingStrategy
from vlmrl.rollout.strategy.two_level import advevo_proposed, asking_for_plan, hill_proposed, himac_proposed, with_plan, with_remark
from vlmrl.types import Guidance, HintRequest, HintRound


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


def test_himac_proposed_plans_for_every_question():
    strategy, mine = himac_proposed(plans=2, executions=2), group(["x"])
    assert strategy.sampled(8) == 1
    [asked] = strategy.more(mine, [1.0], [], step=0)
    assert asked.question == asking_for_plan("When?")
    rounds = rounds_of([asked], [[written("first look"), written("guess")]])
    answers = strategy.more(mine, [1.0], rounds, step=0)
    assert [(a.question, a.tier, a.rows) for a in answers] == [
        (with_plan("When?", "first look"), 2, 2),
        (with_plan("When?", "guess"), 3, 2),
    ]
    out = strategy.merge(mine, [1.0], [*rounds, *rounds_of(answers, [["a", "b"], ["c", "d"]])])
    assert [r.guidance and r.guidance.tier for r in out.rollouts] == [1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="executions"):
        himac_proposed(executions=1)


def test_advevo_proposed_attacks_every_question():
    strategy, mine = advevo_proposed(attacks=2, answers=1), group(["x"])
    assert strategy.sampled(8) == 1
    [asked] = strategy.more(mine, [1.0], [], step=0)
    assert "Reference solution: 3.0 to 5.0" in asked.question
    rounds = rounds_of([asked], [[written("surely it is late"), written("from 3.0 to 5.0, not later")]])
    answers = strategy.more(mine, [1.0], rounds, step=0)
    assert [(a.question, a.tier, a.rows) for a in answers] == [(with_remark("When?", "surely it is late"), 2, 1)]
    with pytest.raises(ValueError, match="attacks"):
        advevo_proposed(attacks=1)


def step(rewards, questions, *, groups=None, reliance=None, progress=0.0):
    x = inputs([(r, 0 if groups is None else groups[n], True) for n, r in enumerate(rewards)])
    provided = {} if reliance is None else {"reliance_N": torch.tensor(reliance, dtype=torch.float64)}
    return dataclasses.replace(x, question_N=torch.tensor(questions), provided=provided, progress=progress)


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


def test_himac_proposed_by_hand():
    x = step([0.1, 0.1, 1.0, 0.0, 0.5, 0.5], [1, 1, 2, 2, 3, 3], progress=0.35)
    assert plan_shaping(x.rewards_NK, x.valid_N, x, reward="task")[:, 0].tolist() == [0.5, 0.5, 1.0, 0.0, 0.5, 0.5]
    adv = torch.arange(6.0)
    assert phases(x, adv, phases=4).tolist() == [0, 0, 2, 3, 4, 5], "the second of four: answers"
    assert phases(x, adv, phases=3).tolist() == [0, 0, 2, 3, 4, 5]
    assert phases(dataclasses.replace(x, progress=1.0), adv, phases=3).tolist() == [0, 1, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="phases"):
        phases(x, adv, phases=1)


def test_advevo_proposed_by_hand():
    x = step([0.1, 0.1, 0.1, 1.0, 0.0, 0.25], [1, 1, 1, 2, 2, 3])
    shaped = attack_shaping(x.rewards_NK, x.valid_N, x, reward="task")[:, 0]
    assert shaped.tolist() == [0.5, 0.75, 0.0, 1.0, 0.0, 0.25]
    found = public_baseline(dataclasses.replace(x, reward_N=shaped))
    attack, defence = 1.25 / 3, 1.25 / 3
    assert found.tolist() == pytest.approx([0.5 - attack, 0.75 - attack, -attack, 1 - defence, -defence, 0.25 - defence])


def test_what_reads_a_strategy_is_refused_without_it():
    rule = needs_strategy("reward_shaping 'm'", "s")

    def stage(name):
        return SimpleNamespace(rollout=SimpleNamespace(strategy=SimpleNamespace(name=name)))

    assert list(rule({}, stage("s"))) == list(rule({}, SimpleNamespace())) == []
    [text] = rule({}, stage("plain"))
    assert "strategy 's'" in text
    assert "'plain'" in text
