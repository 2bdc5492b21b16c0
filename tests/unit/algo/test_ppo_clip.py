"""algo.loss.ppo_clip: value and coefficient c = -dL/dlogp on a grid of (ratio, advantage)."""

from __future__ import annotations

import math

import pytest
import torch

from vlmrl.algo.inputs import LossInputs
from vlmrl.algo.loss.ppo_clip import ppo_clip


def grid(pairs, **arguments):
    """(loss, c, metrics) of one row with these (ratio, advantage) tokens."""
    logp = torch.tensor([[math.log(r) for r, _ in pairs]], dtype=torch.float64, requires_grad=True)
    x = LossInputs(
        logp_BT=logp,
        logp_old_BT=torch.zeros_like(logp),
        logp_ref_BT=None,
        adv_BT=torch.tensor([[a for _, a in pairs]], dtype=torch.float64),
        mask_BT=torch.ones(1, len(pairs), dtype=torch.bool),
        group_B=torch.zeros(1, dtype=torch.int64),
    )
    out = ppo_clip(x, **arguments)
    (grad,) = torch.autograd.grad(out.loss_BT.sum(), logp)
    return out.loss_BT[0].tolist(), (-grad[0]).tolist(), {k: (float(a), float(b)) for k, (a, b) in out.metrics.items()}


@pytest.mark.parametrize(
    ("ratio", "adv", "arguments", "loss", "c"),
    [
        (1.5, 1, {}, -1.2, 0),
        (1.5, -1, {}, 1.5, -1.5),
        (0.5, 1, {}, -0.5, 0.5),
        (0.5, -1, {}, 0.8, 0),
        (1.0, 2, {}, -2, 2),
        (1.25, 1, {"clip_high": 0.28}, -1.25, 1.25),
        (1.25, 0, {}, 0, 0),
        (5, -1, {"dual_clip": 3.0}, 3, 0),
        (2, -1, {"dual_clip": 3.0}, 2, -2),
        (5, 1, {"dual_clip": 3.0}, -1.2, 0),
        (5, -1, {"delta": 4.0}, 4, 0),
        (3, -1, {"delta": 4.0}, 3, -3),
    ],
)
def test_ppo_clip(ratio, adv, arguments, loss, c):
    got_loss, got_c, _ = grid([(ratio, adv)], **arguments)
    assert got_loss == pytest.approx([loss], abs=1e-12)
    assert got_c == pytest.approx([c], abs=1e-12)


def test_clip_ratio_counts_only_the_side_that_the_sign_selects():
    _, _, metrics = grid([(1.5, 1), (1.5, -1), (0.5, 1), (0.5, -1), (0.4, -2), (1.0, 1)])
    assert metrics["clip_ratio/high"] == (1, 6)
    assert metrics["clip_ratio/low"] == (2, 6)
    assert metrics["ratio/mean"] == (pytest.approx(5.4), 6)


def test_the_log_ratio_is_clamped():
    loss, c, _ = grid([(math.exp(19), -1), (math.exp(25), -1), (math.exp(80), -1)])
    assert loss == pytest.approx([math.exp(19), math.exp(20), math.exp(20)])
    assert c == pytest.approx([-math.exp(19), 0, 0])
