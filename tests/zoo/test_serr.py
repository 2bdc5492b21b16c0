"""Shaping `serr`: an order among failures."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reward_shaping.serr import serr, standing


def test_serr_by_hand():
    peak, glob = torch.tensor([2.0, 1.5, 1.8, 1.0]), torch.tensor([0.5, 0.6, 0.9, 0.4])
    assert standing(peak, glob).tolist() == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    assert standing(peak[:1], glob[:1]).tolist() == [0.0]


def of(accuracies, entropies):
    x = inputs([(a, 0, True) for a in accuracies])
    return dataclasses.replace(x, entropy_NT=torch.tensor(entropies), length_N=torch.tensor([len(row) for row in entropies]))


def test_serr_acts_where_all_fail():
    # peaks 3 and 2, means 1 and 1.5: the first dominates
    entropies = [[3.0, 0.0, 0.0], [2.0, 1.5, 1.0]]
    failed = of([0.0, 0.0], entropies)
    assert serr(failed.rewards_NK, failed.valid_N, failed, reward="task")[:, 0].tolist() == pytest.approx([0.1, 0.0])
    mixed = of([0.0, 1.0], entropies)
    assert serr(mixed.rewards_NK, mixed.valid_N, mixed, reward="task")[:, 0].tolist() == [0.0, 1.0]


def test_serr_says_what_it_needs():
    x = inputs([(0.0, 0, True)])
    with pytest.raises(ValueError, match="needs entropy_NT"):
        serr(x.rewards_NK, x.valid_N, x, reward="task")
    with pytest.raises(ValueError, match="peak"):
        serr(x.rewards_NK, x.valid_N, x, reward="task", peak=0.0)
