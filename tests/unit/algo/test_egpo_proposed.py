"""Reweighting `egpo_proposed`: a bonus of entropy within a share of the advantage."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.algo.reweight.egpo_proposed import egpo_proposed


def of(entropy, lengths):
    x = inputs([(1.0, 0, True)] * len(lengths))
    return dataclasses.replace(x, entropy_NT=torch.tensor(entropy), length_N=torch.tensor(lengths))


def test_egpo_proposed_by_hand():
    x = of([[0.5, 1.5, 99.0], [0.1, 0.1, 0.1], [9.0, 9.0, 9.0], [1.0, 1.0, 1.0]], [2, 3, 3, 3])
    adv = torch.tensor([1.0, 1.0, -1.0, 0.0], dtype=torch.float64)
    assert egpo_proposed(x, adv).tolist() == pytest.approx([1.4, 1.04, -0.5, 0.0])


def test_egpo_proposed_keeps_the_signs():
    x = of([[50.0]] * 3, [1] * 3)
    adv = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    assert egpo_proposed(x, adv).sign().tolist() == adv.sign().tolist()
    with pytest.raises(ValueError, match="kappa 1"):
        egpo_proposed(x, adv, kappa=1.0)
