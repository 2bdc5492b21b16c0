"""Groups with several questions: strategies `paraphrases` and `masa`, their rewards, `information_consistency_proposed` and
`grpo_by_question`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import pytest
import torch

from tests.support.builders import group, inputs, sample
from vlmrl.errors import RowError
from vlmrl.protocols import RewardContext
from vlmrl.types import Guidance, HintRound
from vlmrl.zoo.advantage.grpo_by_question import grpo_by_question
from vlmrl.zoo.reward_shaping.information_consistency_proposed import information_consistency_proposed
from vlmrl.zoo.reward_shaping.think_and_direct_proposed import think_and_direct_proposed as direct_shaping
from vlmrl.zoo.rewards.masa import forecast, length_term, notion_term, number, pass_rate_term
from vlmrl.zoo.rewards.masa import masa as masa_reward
from vlmrl.zoo.rewards.paraphrase_agreement import bleu2, paraphrase_agreement
from vlmrl.zoo.strategy.questions import (
    direct_question,
    forecast_question,
    masa,
    paraphrases,
    paraphrases_of,
    think_and_direct_proposed,
)

WORDINGS = ["At what time?", "When?", "", "At which second?", "At what time?"]


def asked(texts, question, tier):
    """Rows that were asked another question."""
    guidance = Guidance(question=question, tier=tier)
    return tuple(dataclasses.replace(r, provenance="guided", guidance=guidance) for r in group(texts).rollouts)


def answer(text):
    return f"<think>t</think><answer>{text}</answer>"


def with_rows(own, others, of=None):
    """A group of own rows and {question: rows}."""
    plain = group([answer(t) for t in own], of)
    more = [asked([answer(t) for t in texts], question, tier) for tier, (question, texts) in enumerate(others.items(), 1)]
    return dataclasses.replace(plain, rollouts=(*plain.rollouts, *itertools.chain(*more)))


def test_paraphrases_share_the_rollouts_among_wordings():
    strategy, mine = paraphrases(views=3), group(["a", "b"], sample(meta={"paraphrases": WORDINGS}))
    assert strategy.sampled(6) == 2
    requests = strategy.more(mine, [0.0, 0.0], [], step=0)
    assert [(r.question, r.tier, r.rows, r.writes) for r in requests] == [("At what time?", 1, 2, False), ("At which second?", 2, 2, False)]
    rounds = [HintRound(request=r, rollouts=asked(["c", "d"], r.question, r.tier), rewards=(0.0, 1.0)) for r in reversed(requests)]
    assert strategy.more(mine, [0.0, 0.0], rounds, step=0) == []
    out = strategy.merge(mine, [0.0, 0.0], rounds)
    assert [(r.k, r.guidance and r.guidance.tier) for r in out.rollouts] == [(0, None), (1, None), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert {r.guidance.train for r in out.rollouts if r.guidance} == {"guided"}
    assert strategy.more(group(["a"]), [0.0], [], step=0) == [], "a row without paraphrases"
    assert strategy.merge(mine, [0.0, 0.0], []) is mine
    with pytest.raises(ValueError, match="views"):
        paraphrases(views=1)


@pytest.mark.parametrize("bad", ["one", [1], ["x"] * 51])
def test_paraphrases_of_another_form_name_the_row(bad):
    with pytest.raises(RowError, match=r"row 'row'.*meta\.paraphrases"):
        paraphrases_of(sample(meta={"paraphrases": bad}))


def test_bleu2_by_hand():
    # words 3 of 4, pairs 1 of 3: sqrt(3/4 * 1/3) = 1/2; as long as the reference, no penalty
    assert bleu2(["a", "b", "c", "d"], ["a", "b", "x", "c"]) == pytest.approx(0.5)
    assert bleu2(["a", "b"], ["a", "b", "c", "d"]) == pytest.approx(math.exp(-1)), "a short candidate"
    assert bleu2(["a"], ["a"]) == 1.0
    assert bleu2(["a", "b"], ["b", "a"]) == 0.0, "no pair in common"
    assert bleu2([], ["a"]) == 0.0


def test_paraphrase_agreement_by_hand():
    mine = with_rows(["x", "y"], {"q1": ["x", "x"], "q2": ["x", "z"]}, sample(answer="x"))
    # the first "x" agrees with three of the four answers to other wordings; "y" and "z" are wrong
    assert paraphrase_agreement(mine, RewardContext()) == pytest.approx([0.75, 0.0, 0.5, 0.5, 0.75, 0.0])
    assert paraphrase_agreement(mine, RewardContext(), gated=False) == pytest.approx([0.75, 0.0, 0.5, 0.5, 0.75, 0.0])
    alike = with_rows(["y", "y"], {"q1": ["y", "y"]}, sample(answer="x"))
    assert paraphrase_agreement(alike, RewardContext(), gated=False) == [1.0] * 4
    assert paraphrase_agreement(alike, RewardContext()) == [0.0] * 4, "wrong alike"
    assert paraphrase_agreement(with_rows(["x"], {}), RewardContext()) == [None]


def test_masa_asks_half_of_the_rollouts_for_a_forecast():
    strategy, mine = masa(), group(["a", "b"])
    assert strategy.sampled(8) == 4
    [request] = strategy.more(mine, [0.0, 0.0], [], step=0)
    assert request.question == forecast_question("When?")
    assert (request.rows, request.writes) == (2, False)


def test_masa_terms_by_hand():
    assert [pass_rate_term(v, 0.5) for v in (4, 0, 8, None, 9)] == pytest.approx([1.0, 0.1, 0.1, 0.0, 0.0])
    assert pass_rate_term(0, 1.0) == pytest.approx(0.01)
    assert [length_term(v, [10, 30, 20]) for v in (10, 11, 30, None)] == [0.0, 1.0, 0.0, 0.0]
    assert length_term(5, []) == 0.0
    # "door" stands in the question, "window" in one right and no wrong solution, "wall" in one of each
    solutions = [("Window, wall", True), ("door wall", False)]
    assert notion_term(["door", "window", "Wall"], "Which door?", solutions) == 0.5
    assert notion_term("window", "q", solutions) == 0.0
    assert [number(v) for v in (True, "3", float("nan"), 3, 10**400)] == [None, None, None, 3.0, None]
    assert [forecast(v) for v in (None, "3", "{", "[" * 3000, '{"a": 1}')] == [None, None, None, None, {"a": 1}]


def test_masa_judges_forecasts_by_the_solutions_of_the_group():
    good = json.dumps({"pass_rate": 4, "solution_length": len(answer("x")) + 1, "notions": ["apple"]})
    mine = with_rows(["x", "x", "no", "no"], {"forecast": [good, "nonsense"]}, sample(answer="x"))
    # half are right: 1; both right ones are equally long, so no length lies between; no solution names an apple
    judged = masa_reward(mine, RewardContext())
    assert judged[:4] == [None] * 4
    assert judged[4:] == pytest.approx([1 / 3, 0.0])
    assert masa_reward(dataclasses.replace(mine, rollouts=mine.rollouts[4:]), RewardContext()) == [None, None]


def test_grpo_by_question_by_hand():
    x = dataclasses.replace(inputs([(r, g, True) for r, g in [(1, 0), (0, 0), (9, 0), (5, 0), (1, 1), (0, 1)]]))
    x = dataclasses.replace(x, question_N=torch.tensor([0, 0, 1, 1, 0, 0]))
    assert grpo_by_question(x, epsilon=0.0).tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)] * 3)


def shaped(entropies, questions, valid=None, **arguments):
    """Tokens of a row all have its entropy."""
    x = inputs([(0.0, 0, True if valid is None else valid[i]) for i in range(len(entropies))])
    entropy_NT = torch.tensor(entropies)[:, None].expand(-1, 4).clone()
    entropy_NT[:, 3] = float("nan")  # outside the responses, which have three tokens
    x = dataclasses.replace(x, question_N=torch.tensor(questions), entropy_NT=entropy_NT)
    return information_consistency_proposed(x.rewards_NK, x.valid_N, x, reward="task", **arguments)[:, 0].tolist()


def test_information_consistency_proposed_by_hand():
    # H 0, 1/2, 1 after scaling; the first two answer one question, the third another: F 0, 1/2, 1 - (1 + 1/2) / 2
    assert shaped([1.0, 2.0, 3.0], [0, 0, 1], helpful=0.0, stable=1.0) == pytest.approx([0.0, 0.5, 0.25])
    assert shaped([1.0, 2.0, 3.0], [0, 0, 1], helpful=1.0, stable=0.0) == pytest.approx([0.0, 0.5, 1.0])
    assert shaped([1.0, 2.0], [0, 0]) == [0.0, 0.0], "one question"
    assert shaped([2.0, 2.0], [0, 1]) == [0.0, 0.0], "one entropy"
    out = shaped([1.0, 9.0, 3.0], [0, 0, 1], valid=[True, False, True], helpful=1.0, stable=0.0)
    assert out[0] == 0.0
    assert out[2] == 1.0, "the unjudged row is not the largest"
    with pytest.raises(ValueError, match="negative"):
        shaped([1.0], [0], helpful=-1.0)


def test_think_and_direct_proposed_asks_both_ways():
    strategy, mine = think_and_direct_proposed(), group(["a", "b"])
    assert strategy.sampled(8) == 4
    [request] = strategy.more(mine, [0.0, 0.0], [], step=0)
    assert (request.question, request.tier, request.rows) == (direct_question("When?"), 1, 2)
    x = dataclasses.replace(
        inputs([(1.0, 0, True)] * 3), question_N=torch.tensor([0, 1, 1]), length_N=torch.tensor([90, 90, 8]), columns=("task",)
    )
    out = direct_shaping(x.rewards_NK, x.valid_N, x, reward="task", budget=64, share=0.25)
    assert out[:, 0].tolist() == [1.0, 0.25, 1.0]
    with pytest.raises(ValueError, match="budget"):
        direct_shaping(x.rewards_NK, x.valid_N, x, reward="task", budget=0)
