"""algo.ratio: values of the gates; their slopes are in test_loss_coefficient."""

from __future__ import annotations

import math

import pytest
import torch

from vlmrl.algo import ratio as axes


def one(value: float) -> torch.Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("ratio", "adv", "bound", "delta", "loss"),
    [
        (1.5, 1, None, None, -1.2),
        (1.5, -1, None, None, 1.5),
        (0.5, 1, None, None, -0.5),
        (0.5, -1, None, None, 0.8),
        (5.0, -1, 3.0, None, 3.0),
        (5.0, 1, 3.0, None, -1.2),
        (5.0, -1, None, 4.0, 4.0),
        (3.0, -1, None, 4.0, 3.0),
    ],
)
def test_min_clip_dual_and_two_sided(ratio, adv, bound, delta, loss):
    found = axes.dual(axes.min_clip(one(ratio), one(adv), 0.8, 1.2, axes.two_sided(one(ratio), delta)), one(adv), bound)
    assert float(found) == pytest.approx(loss)


def test_flipping_the_advantage_never_flips_which_side_is_pessimistic():
    ratio = torch.linspace(0.1, 3.0, 59, dtype=torch.float64)[None]
    for adv in (1.0, -1.0):
        free = -ratio * adv
        assert (axes.min_clip(ratio, torch.full_like(ratio, adv), 0.8, 1.2) >= free).all()


def test_detached_clip_stops_the_gradient_of_the_ratio_and_takes_bounds_per_token():
    logp = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    ratio = torch.tensor([[0.1, 9.0]], dtype=torch.float64) * (logp - logp.detach()).exp()
    high = torch.tensor([[5.0, 4.0]], dtype=torch.float64)
    loss = axes.detached_clip(ratio, torch.tensor([[1.0, -1.0]], dtype=torch.float64), logp, 0.5, high)
    assert loss.tolist() == [[0.5, -8.0]]
    assert torch.autograd.grad(loss.sum(), logp)[0].tolist() == [[-0.5, 4.0]]


def test_soft_gate_at_ratio_1_is_2_over_tau():
    assert float(axes.soft(one(1.0), one(3.0), 2.0, 9.0)) == pytest.approx(-3.0)
    assert float(axes.soft(one(1.0), one(-3.0), 9.0, 2.0)) == pytest.approx(3.0)


def test_metrics_count_on_the_mask():
    ratio = torch.tensor([[1.5, 1.5, 0.5, 0.5, float("nan")]])
    adv = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0]])
    mask = torch.tensor([[True, True, True, True, False]])
    by_sign = axes.clip_metrics(ratio, adv, mask, 0.8, 1.2)
    assert {k: (float(a), float(b)) for k, (a, b) in by_sign.items()} == {
        "clip_ratio/high": (1, 4),
        "clip_ratio/low": (1, 4),
        "ratio/mean": (4, 4),
    }
    cut = axes.weight_metrics(ratio, mask, 0.8, 1.2)
    assert {k: (float(a), float(b)) for k, (a, b) in cut.items()} == {
        "clip_ratio/high": (2, 4),
        "clip_ratio/low": (2, 4),
        "ratio/mean": (4, 4),
    }


@pytest.mark.parametrize(("low", "high"), [(-0.1, 2.0), (1.1, 2.0), (0.0, 0.9), (math.nan, 2.0)])
def test_bounds_that_exclude_1_are_refused(low, high):
    with pytest.raises(ValueError, match="'mine': a and b are"):
        axes.check_bounds("mine", low, high, "a and b")
