"""algo.ratio on two answers, one of two tokens and one of one."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.losses import loss_inputs
from vlmrl.algo import ratio

ROWS = [[(math.exp(0.3), 1.0), (math.exp(-0.1), 1.0)], [(math.exp(0.5), 1.0)]]


def test_levels_of_a_ratio():
    x = loss_inputs(ROWS)
    assert ratio.token_ratio(x)[x.mask_BT].tolist() == pytest.approx([1.3499, 0.9048, 1.6487], abs=1e-4)
    assert ratio.sequence_ratio(x)[x.mask_BT].tolist() == pytest.approx([1.1052, 1.1052, 1.6487], abs=1e-4)
    assert ratio.mean_log_ratio(x).tolist() == pytest.approx([0.1, 0.5])
    assert ratio.sum_log_ratio(x).tolist() == pytest.approx([0.2, 0.5])
    assert ratio.mean_ratio(x).tolist() == pytest.approx([(1.3499 + 0.9048) / 2, 1.6487], abs=1e-4)
    assert ratio.mean_logp(x).tolist() == [-1.0, -1.0]


def test_outside_the_mask_there_is_nothing():
    x = loss_inputs(ROWS)
    assert ratio.log_ratio(x)[1, 1].item() == 0.0
    assert ratio.token_ratio(x)[1, 1].item() == ratio.sequence_ratio(x)[1, 1].item() == 1.0
    (grad,) = torch.autograd.grad(ratio.sequence_ratio(x).sum() + ratio.mean_ratio(x).sum(), x.logp_BT)
    assert float(grad[1, 1]) == 0.0
    assert grad.isfinite().all()


def test_straight_through_has_the_value_of_the_row_and_the_slope_of_the_token():
    x = loss_inputs(ROWS)
    value = ratio.straight_through(torch.tensor([7.0, 8.0], dtype=torch.float64, requires_grad=True), x)
    assert value[x.mask_BT].tolist() == [7.0, 7.0, 8.0]
    (grad,) = torch.autograd.grad((value * torch.tensor([2.0, 3.0])).sum(), x.logp_BT)
    assert grad.tolist() == [[2.0, 3.0], [2.0, 0.0]]


def test_log_ratios_are_clamped_per_token_and_per_answer():
    x = loss_inputs([[(math.exp(50), 1.0), (math.exp(15), 1.0)], [(math.exp(-15), 1.0), (math.exp(-15), 1.0)]])
    assert ratio.log_ratio(x).tolist() == [[20.0, pytest.approx(15.0)], pytest.approx([-15.0, -15.0])]
    assert ratio.sum_log_ratio(x).tolist() == [20.0, -20.0]


def test_rows_without_tokens():
    mask = torch.zeros(2, 3, dtype=torch.bool)
    assert ratio.row_mean(torch.full((2, 3), float("nan")), mask).tolist() == [0.0, 0.0]
