"""Reweighting `xrpo_sharpening`: unlikely right answers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.reweight.xrpo_sharpening import xrpo_sharpening


def of(scores):
    """Mean log-probs per token, of answers with 3 tokens."""
    return dataclasses.replace(inputs([(1.0, 0, True) for _ in scores]), logp_N=3 * torch.tensor(scores, dtype=torch.float64))


def test_xrpo_sharpening_by_hand():
    # eta = 1.6487, 1, 0.6065: the last gets 1 - 0.6065 = 0.3935, at most half of 0.8
    out = xrpo_sharpening(of([-0.5, -1.0, -1.5]), torch.full((3,), 0.8).double())
    assert out.tolist() == pytest.approx([0.8, 0.8, 1.1935], abs=1e-4)
    # s - mean = -0.3: eta 0.7408, bonus 0.2592
    assert xrpo_sharpening(of([-0.3, 0.3]), torch.ones(2).double(), kappa=1.0)[0] == pytest.approx(1.2592, abs=1e-4)


@given(st.lists(st.tuples(st.floats(-5, 0), st.floats(-2, 2)), min_size=1, max_size=6), st.floats(0, 2))
def test_xrpo_sharpening_is_bounded_and_leaves_negatives(rows, kappa):
    adv = torch.tensor([a for _, a in rows]).double()
    out = xrpo_sharpening(of([s for s, _ in rows]), adv, kappa=kappa)
    assert torch.equal(out[adv <= 0], adv[adv <= 0])
    assert (out >= adv - 1e-12).all()
    assert (out <= adv + kappa * adv.abs() + 1e-12).all()


def test_xrpo_sharpening_leaves_rows_that_were_not_sampled():
    x = of([-0.5, float("nan"), -1.5])
    out = xrpo_sharpening(x, torch.ones(3).double())
    assert out[1] == 1.0
    assert out[2] == pytest.approx(1 + 1 - 0.6065, abs=1e-4)
    with pytest.raises(ValueError, match="kappa"):
        xrpo_sharpening(x, torch.ones(3), kappa=-1.0)
