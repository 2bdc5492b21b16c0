"""algo.loss.sspo_proposed, and where sentences end."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.losses import coefficients, loss_inputs
from vlmrl.algo.loss.gspo import gspo
from vlmrl.algo.loss.ppo_clip import ppo_clip
from vlmrl.algo.loss.sspo_proposed import of_sentences, sspo_proposed, widths
from vlmrl.algo.segments import sentences
from vlmrl.train.stage.providers.sentences import sentence_numbers

ROW = [(math.exp(0.3), 1.0), (math.exp(-0.1), 1.0), (math.exp(0.5), 1.0)]


def of(segments, rows=None, **more):
    return loss_inputs(rows or [ROW], segment_BT=torch.tensor(segments), **more)


def test_sspo_proposed_by_hand():
    # sentences 0, 0 | 1: u = exp(0.1), exp(0.5)
    assert coefficients(sspo_proposed, of([[0, 0, 1]]), clip=0.5)[0] == pytest.approx([1.1052, 1.1052, 0.0], abs=1e-4)
    assert coefficients(sspo_proposed, of([[0, 0, 0]]), clip=0.5)[0] == pytest.approx([1.2628] * 3, abs=1e-4)


def test_sspo_proposed_lies_between_tokens_and_answers():
    x = of([[0, 1, 2]])
    assert coefficients(sspo_proposed, x, clip=0.5)[0] == pytest.approx(coefficients(ppo_clip, x, clip_low=0.5, clip_high=0.5)[0])
    x = of([[0, 0, 0]])
    assert coefficients(sspo_proposed, x, clip=0.1) == [pytest.approx(c) for c in coefficients(gspo, x, clip_low=0.1, clip_high=0.1)]


def test_sspo_proposed_widens_unsure_sentences():
    # sentence means 1 and 4: over their mean 2.5 they are 0.4 and 1.6, held in [0.5, 2]
    x = of([[0, 0, 1]], entropy_BT=torch.tensor([[0.5, 1.5, 4.0]]))
    assert widths(x, torch.tensor([[0, 0, 1]]), 0.02)[0].tolist() == pytest.approx([0.01, 0.01, 0.032])
    assert of_sentences(torch.tensor([[1.0, 3.0, 5.0]]), torch.tensor([[0, 0, 1]]), torch.tensor([[True, True, False]])).tolist() == [
        [2, 2, 0]
    ]


def test_sspo_proposed_finds_sentences():
    assert sentences([False, False, False, True, False, False, False, True]) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sentences([True, False, False, True, False]) == [0, 0, 0, 0, 0], "the rest is too short for a sentence"
    assert sentences([]) == []
    tokenizer = SimpleNamespace(decode=lambda ids: {1: "a", 2: " end.", 3: "\n\n"}[ids[0]])
    stage = SimpleNamespace(policy=SimpleNamespace(bundle=SimpleNamespace(tokenizer=tokenizer)))
    rows = [SimpleNamespace(response=(1, 1, 1, 2, 1, 1, 1, 3)), SimpleNamespace(response=(1, 2))]
    batch = SimpleNamespace(rows=rows, mask_NT=torch.ones(2, 8, dtype=torch.bool))
    assert sentence_numbers(stage, batch, None)["segment_BT"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0] * 8]  # pyright: ignore


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 6))
def test_sspo_proposed_sentences_are_long_enough_and_in_order(ends, least):
    found = sentences(ends, least=least)
    assert len(found) == len(ends)
    assert all(b - a in (0, 1) for a, b in pairwise(found))
    assert len(ends) < least or all(found.count(one) >= least for one in set(found))


def test_sspo_proposed_refuses_its_arguments():
    with pytest.raises(ValueError, match="clip"):
        sspo_proposed(of([[0, 0, 0]]), clip=0.6)
    with pytest.raises(ValueError, match="segment_BT"):
        sspo_proposed(loss_inputs([ROW]))
