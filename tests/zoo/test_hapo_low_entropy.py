"""Reweighting `hapo_low_entropy`."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reweight.hapo_low_entropy import hapo_low_entropy, heterogeneity

H = [0.05, 0.1, 0.2, 0.4, 1.2]


def of(entropies, lengths):
    base = inputs([(1.0, 0, True) for _ in lengths])
    return dataclasses.replace(base, entropy_NT=torch.tensor(entropies), length_N=torch.tensor(lengths))


def test_hapo_low_entropy_by_hand():
    assert heterogeneity(torch.tensor(H)).tolist() == pytest.approx([-1, -2 / 3, -1 / 3, 0, 1], abs=1e-5)
    out = hapo_low_entropy(of([H], [5]), torch.ones(1, 5))
    assert out[0].tolist() == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0, 1.0], abs=1e-5)
    assert hapo_low_entropy(of([H], [5]), torch.ones(1, 5), beta=0.5)[0, 0] == pytest.approx(0.5)


def test_hapo_low_entropy_ignores_the_padding():
    out = hapo_low_entropy(of([[*H, 1e-30]], [5]), torch.ones(1, 6))
    assert out[0, 0] == pytest.approx(0.0, abs=1e-6)


def test_hapo_low_entropy_of_equal_or_no_tokens_changes_nothing():
    assert hapo_low_entropy(of([[0.3, 0.3]], [2]), torch.ones(1, 2)).tolist() == [[1.0, 1.0]]
    assert hapo_low_entropy(of([[0.3, 0.3]], [0]), torch.ones(1, 2)).tolist() == [[1.0, 1.0]]
    assert heterogeneity(torch.tensor([0.0, 0.0])).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="beta"):
        hapo_low_entropy(of([[0.3]], [1]), torch.ones(1, 1), beta=2.0)
