"""Reweighting `ace`: sure and wrong."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.reweight.ace import ace, penalised


def of(gaps, lengths):
    """Rows whose response tokens have these log-ratios; the padding has 99."""
    base = inputs([(0.0, 0, True) for _ in gaps])
    gap = torch.tensor(gaps)
    return dataclasses.replace(base, logp_NT=gap - 1, logp_ref_NT=torch.full_like(gap, -1.0), length_N=torch.tensor(lengths))


@pytest.mark.parametrize(("confidence", "expected"), [(-2.0, -0.5635), (0.0, -0.8466), (2.0, -1.5635)])
def test_ace_by_hand(confidence, expected):
    out = ace(of([[confidence, confidence, 99.0]], [2]), torch.tensor([-0.5]).double())
    assert out.tolist() == pytest.approx([expected], abs=1e-4)


def test_ace_can_sum_over_the_answer():
    x, adv = of([[1.0, 1.0]], [2]), torch.tensor([-0.5]).double()
    assert ace(x, adv, length="sum").tolist() == pytest.approx([-1.5635], abs=1e-4)


def test_ace_of_the_excess_leaves_the_start_alone():
    assert ace(of([[0.0]], [1]), torch.tensor([-0.5]), excess=True).tolist() == [-0.5]


@given(st.floats(-2, 2), st.floats(-50, 50), st.floats(0, 3))
def test_ace_only_strengthens_negatives(adv, confidence, alpha):
    (out,) = penalised(torch.tensor([adv]), torch.tensor([confidence]), alpha=alpha, excess=False).tolist()
    assert out <= adv + 1e-6
    assert adv < 0 or out == torch.tensor(adv).item()
    (surer,) = penalised(torch.tensor([adv]), torch.tensor([confidence + 1]), alpha=alpha, excess=False).tolist()
    assert surer <= out + 1e-6


def test_ace_says_what_it_needs():
    with pytest.raises(ValueError, match="needs logp_NT"):
        ace(inputs([(0.0, 0, True)]), torch.tensor([-1.0]))
    with pytest.raises(ValueError, match="alpha"):
        ace(of([[0.0]], [1]), torch.tensor([-1.0]), alpha=-1.0)
