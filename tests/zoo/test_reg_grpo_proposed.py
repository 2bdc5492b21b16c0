"""algo.loss.reg_grpo_proposed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.losses import coefficients, loss_inputs, metric
from vlmrl.algo.ratio import seq_mean
from vlmrl.zoo.loss.reg_grpo_proposed import reg_grpo_proposed

GAPS = [[0.1, 0.2], [-0.3], [0.05, 0.0, 0.4]]
ADVANTAGES = [1.0, -0.75, -0.25]


def answers(shift: float = 0.0):
    means = [sum(row) / len(row) + shift for row in GAPS]
    rows = [[(math.exp(d + shift), a) for d in row] for row, a in zip(GAPS, ADVANTAGES, strict=True)]
    return loss_inputs(rows, score_mean_B=torch.full((3,), sum(means) / 3, dtype=torch.float64))


def slope(x, eta: float) -> torch.Tensor:
    reduction = seq_mean(x.mask_BT)
    value = torch.where(x.mask_BT, reg_grpo_proposed(x, eta=eta).loss_BT, torch.zeros_like(x.logp_BT)) * reduction.weight_BT
    (grad,) = torch.autograd.grad(value.sum() / reduction.count, x.logp_BT)
    return grad


@pytest.mark.parametrize("eta", [0.05, 0.5])
def test_reg_grpo_is_the_gradient_of_the_group_objective(eta):
    """mean_i (eta / 2) (A_i - (g_i - mean g) / eta)^2, with the gradient through the mean."""
    x = answers()
    gap = torch.where(x.mask_BT, x.logp_BT - x.logp_old_BT, torch.zeros_like(x.logp_BT))
    g = gap.sum(1) / x.mask_BT.sum(1)
    objective = (eta / 2 * (torch.tensor(ADVANTAGES, dtype=torch.float64) - (g - g.mean()) / eta).square()).mean()
    (expected,) = torch.autograd.grad(objective, x.logp_BT)
    torch.testing.assert_close(slope(x, eta)[x.mask_BT], expected[x.mask_BT], rtol=1e-10, atol=1e-12)


def test_reg_grpo_at_the_old_policy_is_reinforce():
    x = loss_inputs([[(1.0, 2.0)], [(1.0, -2.0), (1.0, -2.0)]], score_mean_B=torch.zeros(2, dtype=torch.float64))
    assert coefficients(reg_grpo_proposed, x) == [[2.0], [-2.0, -2.0]]
    assert metric(reg_grpo_proposed, x, "reg_grpo_proposed/error") == (12.0, 3)


def test_reg_grpo_rests_on_a_bandit_of_two_where_the_log_ratios_have_reached_eta_times_the_advantage():
    eta = 0.05
    x = loss_inputs([[(math.exp(0.2 + eta), 1.0)], [(math.exp(0.2 - eta), -1.0)]], score_mean_B=torch.full((2,), 0.2, dtype=torch.float64))
    assert [c[0] for c in coefficients(reg_grpo_proposed, x, eta=eta)] == pytest.approx([0.0, 0.0], abs=1e-12)


@given(shift=st.floats(-1.0, 1.0))
def test_reg_grpo_does_not_mind_a_common_shift(shift):
    moved, still = answers(shift), answers()
    torch.testing.assert_close(slope(moved, 0.1)[moved.mask_BT], slope(still, 0.1)[still.mask_BT], rtol=1e-8, atol=1e-10)


def test_reg_grpo_names_what_is_missing_or_wrong():
    with pytest.raises(ValueError, match=r"'reg_grpo_proposed' needs LossInputs\.score_mean_B"):
        reg_grpo_proposed(loss_inputs([[(1.0, 1.0)]]))
    with pytest.raises(ValueError, match="eta is 0"):
        reg_grpo_proposed(answers(), eta=0.0)
