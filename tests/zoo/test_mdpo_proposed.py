"""algo.loss.mdpo_proposed."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.losses import coefficients, loss_inputs, metric
from vlmrl.algo.inputs import LossInputs
from vlmrl.zoo.loss.mdpo_proposed import mdpo_proposed


def test_mdpo_proposed_pulls_back_to_the_old_policy():
    x = loss_inputs([[(1.0, 1.0), (2.0, 1.0), (0.5, -1.0)]])
    expected = [1.0, 2 * (1 - 0.1 * math.log(2)), 0.5 * (-1 + 0.1 * math.log(2))]
    assert coefficients(mdpo_proposed, x)[0] == pytest.approx(expected)
    # rho * (1 / rho + log rho - 1) for rho = 1, 2, 1/2
    assert metric(mdpo_proposed, x, "mdpo_proposed/kl")[0] == pytest.approx(2 * math.log(2) - 1 + 0.5 * (1 - math.log(2)))


def test_mdpo_proposed_reaches_the_mirror_step_of_a_bandit():
    """Many steps on one batch end at pi_old * exp(A / weight) over its sum, for two arms whose expected loss is written out."""
    old, adv, weight = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.2, -0.2]).double(), 0.5
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    for _ in range(3000):
        x = LossInputs(
            logp_BT=logits.log_softmax(0)[None, :],
            logp_old_BT=old.log()[None, :],
            logp_ref_BT=None,
            adv_BT=adv[None, :],
            mask_BT=torch.ones(1, 2, dtype=torch.bool),
            group_B=torch.zeros(1, dtype=torch.int64),
        )
        loss = (mdpo_proposed(x, weight=weight).loss_BT * old).sum()
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - 0.5 * gradient).detach().requires_grad_()
    target = (old.log() + adv / weight).softmax(0)
    assert logits.softmax(0).tolist() == pytest.approx(target.tolist(), abs=1e-4)


def test_mdpo_proposed_refuses_its_argument():
    with pytest.raises(ValueError, match="weight"):
        mdpo_proposed(loss_inputs([[(1.0, 1.0)]]), weight=-1.0)
