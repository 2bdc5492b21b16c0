"""Reweighting `grao_proposed`: a reference answer among the samples."""

from __future__ import annotations

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.algo.reweight.grao_proposed import grao_proposed


def test_grao_proposed_is_the_gradient_of_its_loss():
    rewards = [(0.2, 0, True), (0.9, 0, True), (0.5, 0, True), (0.8, 0, True)]
    x = inputs(rewards, off_policy=[3])
    adv = torch.tensor([-1.0, 1.2, -0.3, 0.4]).double()
    lbar = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    behind = torch.tensor([0.6, 0.0, 0.3]).double()
    loss = -(adv[:3] * lbar[:3]).mean() - 0.5 * adv[3] * lbar[3] - 0.1 * (behind * (lbar[3] - lbar[:3])).mean()
    (gradient,) = torch.autograd.grad(loss, lbar)
    assert grao_proposed(x, adv).tolist() == pytest.approx((-3 * gradient).tolist())


def test_grao_proposed_of_nothing_is_the_samples_alone():
    x = inputs([(0.2, 0, True), (0.9, 0, True), (0.8, 0, True)], off_policy=[2])
    assert grao_proposed(x, torch.tensor([-1.0, 1.0, 0.5]), alpha=0.0, gap=0.0).tolist() == [-1.0, 1.0, 0.0]


def test_grao_proposed_leaves_groups_without_a_reference():
    x = inputs([(0.2, 0, True), (0.9, 0, True)])
    assert grao_proposed(x, torch.tensor([-1.0, 1.0])).tolist() == [-1.0, 1.0]
    with pytest.raises(ValueError, match="gap"):
        grao_proposed(x, torch.ones(2), gap=-1.0)
