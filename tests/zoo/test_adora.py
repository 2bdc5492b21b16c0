"""Reweighting `adora`: prompts by the lengths of right and wrong answers."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reweight.adora import adora


def of(rows):
    """(reward, length, cut off) of one group."""
    base = inputs([(r, 0, True) for r, _, _ in rows])
    return dataclasses.replace(base, length_N=torch.tensor([n for _, n, _ in rows]), truncated_N=torch.tensor([c for _, _, c in rows]))


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ([(1, 9, False), (1, 2, False), (0, 4, False), (0, 6, False)], True),  # 9 > 5
        ([(1, 5, False), (0, 4, False), (0, 6, False)], False),  # 5 is not above 5
        ([(1, 5, False), (0, 4, False), (0, 99, True)], True),  # what was cut off does not count
        ([(0, 5, False), (0, 4, False)], True),  # no right answer
        ([(1, 5, False), (1, 4, False)], False),  # no wrong answer
        ([(1, 5, False), (0, 4, True)], False),  # none that counts
    ],
)
def test_adora_by_hand(rows, kept):
    adv = torch.linspace(-1, 1, len(rows)).double()
    assert adora(of(rows), adv).tolist() == pytest.approx((adv * (1.0 if kept else 0.1)).tolist())


def test_adora_can_prefer_short_answers():
    x = of([(1, 3, False), (1, 9, False), (0, 4, False)])
    assert adora(x, torch.ones(3), prefer="shorter").tolist() == [1.0, 1.0, 1.0]
    assert adora(of([(1, 5, False), (0, 4, False)]), torch.ones(2), prefer="shorter").tolist() == pytest.approx([0.1, 0.1])


def test_adora_looks_at_a_named_reward():
    with pytest.raises(ValueError, match="no reward column 'speed'"):
        adora(of([(1, 5, False)]), torch.ones(1), reward="speed")
    with pytest.raises(ValueError, match="weight"):
        adora(of([(1, 5, False)]), torch.ones(1), weight=-1.0)
