"""Reweighting `ap_grpo`: rare successes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.reweight.ap_grpo import ap_grpo


def test_ap_grpo_by_hand():
    x = inputs([(1.0, 0, True), (0.0, 0, True), (0.0, 0, True), (0.0, 0, True)])
    out = ap_grpo(x, torch.tensor([1.5, -0.5, -0.5, -0.5]).double())
    assert out.tolist() == pytest.approx([1.5 * 1.45, *[-0.5 * 0.85] * 3])
    assert ap_grpo(x, torch.ones(4), k=0.0).tolist() == [1.0] * 4


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 0.99))
def test_ap_grpo_factors_have_mean_1_and_keep_signs(rewards, k):
    factors = ap_grpo(inputs([(r, 0, True) for r in rewards]), torch.ones(len(rewards)).double(), k=k)
    assert float(factors.mean()) == pytest.approx(1.0)
    assert (factors > 0).all()


def test_ap_grpo_refuses_a_k_that_turns_signs():
    with pytest.raises(ValueError, match="k is 1"):
        ap_grpo(inputs([(1.0, 0, True)]), torch.ones(1), k=1.0)
