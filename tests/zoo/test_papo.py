"""Auxiliary loss `papo`."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.losses import coefficients, loss_inputs, metric, tensor
from vlmrl.zoo.auxiliary.papo import papo

LN2 = math.log(2)


def seen(logp, masked):
    """Inputs whose policy has these log-probs, and under masked media those."""
    return loss_inputs([[(1.0, 0.0)] * len(row) for row in logp], logp, masked_logp_BT=tensor(masked))


def test_papo_by_hand():
    """d = log pi_mask - log pi is ln 2, -ln 2 and 0: exp(d) - d - 1 is 1 - ln 2, ln 2 - 1/2 and 0."""
    x = seen([[-1.0, -1.0, -0.5]], [[-1.0 + LN2, -1.0 - LN2, -0.5]])
    out = papo(x).loss_BT[0].tolist()
    assert out == pytest.approx([-0.01 * (1 - LN2) + 0.03 * (2 - LN2), -0.01 * (LN2 - 0.5) + 0.03 * (2 + LN2), 0.03 * 1.0])
    # -d loss / d log pi: 0.03 of the entropy, and 0.01 (1 - pi_mask/pi) of the divergence, which is 2, 1/2 and 1
    assert coefficients(papo, x)[0] == pytest.approx([0.03 - 0.01, 0.03 + 0.005, 0.03])
    assert metric(papo, x, "divergence") == (pytest.approx(0.5), 3.0)
    assert metric(papo, x, "masked_entropy") == (pytest.approx(2.5), 3.0)


def test_papo_bounds_the_divergence():
    """exp(4) - 5 is 49.6: beyond 10 neither value nor gradient."""
    x = seen([[-5.0, -30.0]], [[-1.0, -1.0]])
    assert papo(x, entropy=0.0).loss_BT[0].tolist() == pytest.approx([-0.1, -0.1])
    assert coefficients(papo, x, entropy=0.0) == [[0.0, 0.0]]


def test_a_row_without_media_has_the_entropy_only():
    nan = math.nan
    x = seen([[-1.0], [-1.0, -2.0]], [[-1.0 + LN2], [nan, nan]])
    assert papo(x).loss_BT[1].tolist() == pytest.approx([0.03, 0.06])
    assert coefficients(papo, x)[1] == pytest.approx([0.03, 0.03])
    assert metric(papo, x, "divergence")[1] == 1.0


def test_papo_gives_the_masked_view_no_gradient():
    masked = torch.tensor([[-0.5]], dtype=torch.float64, requires_grad=True)
    x = loss_inputs([[(1.0, 0.0)]], masked_logp_BT=masked)
    papo(x).loss_BT.sum().backward()
    assert masked.grad is None
    assert x.logp_BT.grad is not None


@pytest.mark.parametrize("wrong", [{"divergence": -0.1}, {"entropy": -0.1}, {"patch": 0}, {"share": 1.5}])
def test_papo_says_what_is_wrong(wrong):
    with pytest.raises(ValueError, match="auxiliary_loss 'papo'"):
        papo(seen([[-1.0]], [[-1.0]]), **wrong)


def test_papo_needs_the_masked_view():
    with pytest.raises(ValueError, match="masked_logp_BT"):
        papo(loss_inputs([[(1.0, 0.0)]]))
