"""algo.loss.opmd."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.losses import coefficients, loss_inputs, total
from vlmrl.zoo.loss.opmd import opmd


def mean(value: float, rows: int) -> torch.Tensor:
    return torch.full((rows,), value, dtype=torch.float64)


def test_opmd_is_the_gradient_of_the_variance_of_reward_minus_tau_log_ratio():
    """(1/2) Var_i(r_i - tau d_i), by autograd, is tau / G times the gradient of the loss."""
    tau, rewards = 0.5, torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    gaps = [[0.1, 0.2], [-0.3], [0.05, 0.0, 0.4], [0.0, -0.1]]
    rows = [[(math.exp(d), float(r) - 0.5) for d in row] for row, r in zip(gaps, rewards, strict=True)]
    ratios = [sum(row) for row in gaps]
    x = loss_inputs(rows, score_mean_B=mean(sum(ratios) / 4, 4))
    found = coefficients(opmd, x, tau=tau)
    leaf = torch.tensor(ratios, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(0.5 * (rewards - tau * leaf).var(correction=0), leaf)
    for row, expected in zip(found, slope.tolist(), strict=True):
        assert [tau / 4 * c for c in row] == pytest.approx([-expected] * len(row), rel=1e-12)


def test_opmd_at_the_old_policy():
    """r = [1, 0, 0, 1], tau = .5: the variance's gradient is (tau / G)(r - mean) = +-.0625."""
    x = loss_inputs([[(1.0, a)] for a in (0.5, -0.5, -0.5, 0.5)], score_mean_B=mean(0.0, 4))
    assert [0.5 / 4 * c[0] for c in coefficients(opmd, x, tau=0.5)] == [0.0625, -0.0625, -0.0625, 0.0625]


def test_opmd_is_at_rest_where_reward_minus_tau_log_ratio_is_constant():
    tau, rewards, constant = 0.8, [1.0, 0.0, 0.25], 0.3
    gaps = [(r - constant) / tau for r in rewards]
    average = sum(rewards) / 3
    rows = [[(math.exp(d / 2), r - average)] * 2 for d, r in zip(gaps, rewards, strict=True)]
    found = coefficients(opmd, loss_inputs(rows, score_mean_B=mean(sum(gaps) / 3, 3)), tau=tau)
    assert [c for row in found for c in row] == pytest.approx([0.0] * 6, abs=1e-12)


def test_opmd_scaled_is_reinforce_over_one_plus_tau():
    x = loss_inputs([[(1.7, 3.0), (0.2, -1.0)]], [[-2.0, -0.5]])
    assert coefficients(opmd, x, form="scaled", tau=0.5) == [pytest.approx([2.0, -2 / 3])]
    assert float(total(opmd(x, form="scaled"), x).detach()) == pytest.approx((6.0 - 0.5) / 2)


def test_opmd_names_what_is_missing_or_wrong():
    with pytest.raises(ValueError, match=r"'opmd' needs LossInputs\.score_mean_B"):
        opmd(loss_inputs([[(1.0, 1.0)]]))
    with pytest.raises(ValueError, match="tau is -1"):
        opmd(loss_inputs([[(1.0, 1.0)]]), tau=-1.0)
