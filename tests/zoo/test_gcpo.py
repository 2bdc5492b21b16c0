"""Shaping `gcpo`: an action earns something where it helps."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reward_shaping.gcpo import gcpo


def shaped(rows, **arguments):
    """(accuracy, used) of one group."""
    x = inputs([(a, 0, True) for a, _ in rows])
    rewards = torch.tensor(rows, dtype=torch.float64)
    x = dataclasses.replace(x, columns=("accuracy", "used"), rewards_NK=rewards)
    return gcpo(rewards, x.valid_N, x, reward="accuracy", used="used", **arguments)[:, 0].tolist()


def test_gcpo_by_hand():
    assert shaped([(1, 1), (1, 1), (0, 0), (1, 0)]) == pytest.approx([1.1, 1.1, 0.0, 1.0])  # 1 against 0.5
    assert shaped([(0, 1), (1, 1), (1, 0), (1, 0)]) == pytest.approx([-0.1, 0.9, 1.0, 1.0])  # the sides exchanged
    assert shaped([(1, 1), (0, 1), (1, 0), (0, 0)]) == [1.0, 0.0, 1.0, 0.0]  # no difference


def test_gcpo_needs_a_difference_and_two_on_each_side():
    rows = [(1, 1), (0.9, 1), (0.9, 0), (0.9, 0)]
    assert shaped(rows) == [1.0, 0.9, 0.9, 0.9]
    assert shaped(rows, epsilon=0.01)[0] == pytest.approx(1.1)
    assert shaped([(1, 1), (0, 0), (0, 0)]) == [1.0, 0.0, 0.0]


def test_gcpo_keeps_right_above_wrong():
    out = shaped([(0, 1), (0, 1), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0), (1, 0)])
    assert min(v for v, right in zip(out, [0, 0, 1, 1, 1, 0, 0, 1], strict=True) if right) > max(out[:2])
    with pytest.raises(ValueError, match="weight"):
        shaped([(1, 1)], weight=-1.0)
