"""Strategies `spo_chain_proposed` and `rest_grpo_proposed`, pieces of thoughts, and the reweight of the first."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import group, inputs
from vlmrl.protocols import GuidingStrategy
from vlmrl.rollout.pieces import beginning, cut_places, thought_span
from vlmrl.types import Guidance, HintRound
from vlmrl.zoo.providers.pieces import piece_numbers
from vlmrl.zoo.reweight import spo_chain_proposed as chain
from vlmrl.zoo.strategy.going_on import going_on, rest_grpo_proposed, spo_chain_proposed, spread

THOUGHT = "<think>one two three four</think><answer>5</answer>"


def shown(text, pieces):
    return [beginning(text, place) for place in cut_places(text, pieces)]


def test_thoughts_are_cut_behind_words():
    assert shown(THOUGHT, 4) == ["one", "one two", "one two three"]
    assert shown(THOUGHT, 2) == ["one two"]
    assert shown(THOUGHT, 9) == ["one", "one two", "one two three"], "a piece holds a word"
    assert shown("<think>one two", 2) == ["one"], "a thought that was cut off"
    assert cut_places("<answer>5</answer>", 3) == cut_places("<think></think>", 3) == []
    assert thought_span("x <think>y</think>") == (0, 0)


def characters(ids):
    return "".join(map(chr, ids))


@given(st.text("ab <>/think\n", max_size=60), st.integers(2, 6))
def test_every_token_has_a_piece_and_cuts_are_where_pieces_change(text, pieces):
    text = f"<think>{text}"
    found = piece_numbers(tuple(map(ord, text)), text, pieces, characters)
    cuts = cut_places(text, pieces)
    assert len(found) == len(text)
    assert found == [sum(place <= t for place in cuts) for t in range(len(text))]


def continued(strategy, mine, rewards, second):
    requests = strategy.more(mine, rewards, [], step=0)
    rounds = []
    for request in requests:
        guidance = Guidance(question=request.question, tier=request.tier)
        made = tuple(dataclasses.replace(r, provenance="guided", guidance=guidance) for r in group([second] * request.rows).rollouts)
        rounds.append(HintRound(request=request, rollouts=made, rewards=(0.0,) * request.rows))
    assert strategy.more(mine, rewards, rounds, step=0) == ([] if rounds else requests)
    return requests, strategy.merge(mine, rewards, rounds[::-1])


def test_spo_chain_proposed_goes_on_from_every_place():
    strategy, mine = spo_chain_proposed(pieces=3, continuations=2), group([THOUGHT, "<think>one two</think><answer>5</answer>", "none"])
    assert isinstance(strategy, GuidingStrategy)
    requests, out = continued(strategy, mine, [0.0] * 3, "x")
    assert [(r.tier, r.rows) for r in requests] == [(1, 2), (2, 2), (3, 2)], "two places, then the only one of the second answer"
    assert requests[2].question == going_on("When?", "one")
    assert [r.guidance and r.guidance.tier for r in out.rollouts] == [None] * 3 + [1, 1, 2, 2, 3, 3]
    assert strategy.merge(mine, [0.0] * 3, []) is mine
    with pytest.raises(ValueError, match="pieces"):
        spo_chain_proposed(pieces=1)


def test_rest_grpo_proposed_goes_on_from_early_places_of_the_best():
    strategy, mine = rest_grpo_proposed(pieces=4, beginnings=2), group(["bad", THOUGHT, "bad", "bad"])
    assert strategy.sampled(8) == 4
    requests, out = continued(strategy, mine, [0.0, 1.0, None, 0.0], "x")
    assert [(r.question, r.rows) for r in requests] == [(going_on("When?", "one"), 2), (going_on("When?", "one two three"), 2)]
    assert len(out.rollouts) == 8
    assert strategy.more(mine, [0.8] * 4, [], step=0) == [], "not good enough"
    assert strategy.more(mine, [1.0] * 4, [], step=0) == [], "nothing differs"
    with pytest.raises(ValueError, match="alpha"):
        rest_grpo_proposed(alpha=1.0)


def test_early_places_are_likelier():
    # weights 1, 1/2, 1/4, 1/8: sums 1, 1.5, 1.75, 1.875; the middles of thirds are 0.3125, 0.9375 and 1.5625
    assert spread(4, 0.5, 3) == [0, 2]
    assert spread(4, 0.999999, 4) == [0, 1, 2, 3]
    assert spread(0, 0.5, 2) == []


def step(rewards, questions, pieces, logp=None, valid=None):
    valid = [True] * len(rewards) if valid is None else valid
    x = inputs([(r, 0, ok) for r, ok in zip(rewards, valid, strict=True)])
    provided = {"piece_NT": torch.tensor(pieces)}
    logp = [[-1.0] * len(pieces[0])] * len(rewards) if logp is None else logp
    return dataclasses.replace(x, question_N=torch.tensor(questions), provided=provided, logp_NT=torch.tensor(logp))


def test_spo_chain_proposed_by_hand():
    # the specification's example: V 0.5, 0.75, 0.25 and the answer's own reward 1
    rewards = [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.25]
    x = step(rewards, [0, 0, 1, 1, 1, 1, 2], [[0, 0, 1, 2]] * 7)
    out = chain.spo_chain_proposed(x, torch.full((7, 4), 9.0), pieces=3)
    assert out[0].tolist() == pytest.approx([0.25, 0.25, -0.5, 0.75])
    assert out[1].tolist() == pytest.approx([0.0, 0.0, 0.0, -0.5]), "nobody went on from the second answer: all is its end's"
    assert out[2:].abs().sum() == 0


def test_spo_chain_proposed_masks_sure_tokens_and_short_thoughts():
    logp = [[math.log(0.95), math.log(0.5), -1.0, -1.0]] * 3
    x = step([1.0, 0.0, 0.5], [0, 0, 1], [[0, 0, 1, 1]] * 3, logp)
    out = chain.spo_chain_proposed(x, torch.zeros(3, 4), pieces=3)
    assert out[0].tolist() == pytest.approx([0.0, 0.0, 0.5, 0.5]), "two pieces: the second ends with the answer"
    unsure = chain.spo_chain_proposed(dataclasses.replace(x, reward_N=torch.tensor([1.0, 0.0, 1.0]).double()), torch.zeros(3, 4), pieces=3)
    assert unsure[0].tolist() == pytest.approx([0.0, 0.5, 0.0, 0.0]), "the first token is sure"
    everything = chain.spo_chain_proposed(
        dataclasses.replace(x, reward_N=torch.tensor([1.0, 0.0, 1.0]).double()), torch.zeros(3, 4), pieces=3, sure=1.0
    )
    assert everything[0].tolist() == pytest.approx([0.5, 0.5, 0.0, 0.0])
    unjudged = step([1.0, 0.0, 0.5], [0, 0, 1], [[0, 0, 1, 1]] * 3, valid=[False, True, True])
    assert chain.spo_chain_proposed(unjudged, torch.zeros(3, 4), pieces=3)[0].abs().sum() == 0


@given(st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_advantages_along_an_answer_sum_to_its_reward_less_the_prompts_value(rewards):
    x = step(rewards, [0, 0, 1, 1, 2, 2, 3, 4], [[0, 1, 2]] * 8)
    out = chain.spo_chain_proposed(x, torch.zeros(8, 3, dtype=torch.float64), pieces=3, sure=1.0)
    start = (rewards[0] + rewards[1]) / 2
    assert out[:2].sum(dim=1).tolist() == pytest.approx([rewards[0] - start, rewards[1] - start])


def test_the_reweight_and_its_strategy_cut_alike():
    def stage(**arguments):
        strategy = SimpleNamespace(name="spo_chain_proposed", arguments=arguments)
        return SimpleNamespace(rollout=SimpleNamespace(strategy=strategy))

    rule = chain._without_its_strategy
    assert list(rule({}, stage())) == list(rule({"pieces": 3}, stage(pieces=3))) == []
    assert "different numbers" in next(iter(rule({"pieces": 3}, stage())))
