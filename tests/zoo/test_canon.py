"""Advantages `canon_length` and `canon_entropy`: halves of a group, split by a metric."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.algo.advantage.dr_grpo import dr_grpo
from vlmrl.zoo.advantage.canon import canon_entropy, canon_length, high_share

REWARDS = [1.0, 1.0, 0.0, 1.0]
"""Spec's example: x = [.2, .8, .5, .9], so rollouts 0 and 2 are the low half."""


def by_length(lengths, rewards=REWARDS):
    return dataclasses.replace(inputs([(r, 0, True) for r in rewards]), length_N=torch.tensor(lengths))


def test_canon_length_by_hand():
    x = by_length([2, 8, 5, 9])
    assert canon_length(x, mu=1.0).tolist() == pytest.approx([0.0, 0.5, -1.0, 0.5])
    assert canon_length(x, mu=0.0).tolist() == pytest.approx([0.5, 0.0, -0.5, 0.0])
    assert canon_length(x, mu=0.5).tolist() == pytest.approx([0.25, 0.25, -0.75, 0.25])


def test_canon_entropy_by_hand():
    entropy = torch.tensor([[0.1, 0.3, 9.0], [0.8, 0.8, 9.0], [0.5, 0.5, 9.0], [1.0, 0.8, 9.0]])
    x = dataclasses.replace(by_length([2, 2, 2, 2]), entropy_NT=entropy)
    assert canon_entropy(x).tolist() == pytest.approx([0.0, 0.5, -1.0, 0.5])
    # the low half is preferred: 2 * r - mean_high, and r - 2 * mean_low
    assert canon_entropy(x, alpha=2.0).tolist() == pytest.approx([1.0, 0.0, -1.0, 0.0])
    with pytest.raises(ValueError, match="needs entropy_NT"):
        canon_entropy(by_length([1, 1, 1, 1]))


def test_canon_length_prefers_long_answers():
    # long half: 2 * 1 - 0.5; short half: r - 2 * 1
    assert canon_length(by_length([2, 8, 5, 9]), alpha=2.0).tolist() == pytest.approx([-1.0, 1.5, -2.0, 1.5])


def test_canon_length_knows_only_the_halves():
    assert torch.equal(canon_length(by_length([2, 8, 5, 9])), canon_length(by_length([5, 9, 2, 8])))


def test_canon_shares_ties_at_the_border():
    assert high_share(torch.tensor([1.0, 1.0, 1.0, 1.0])).tolist() == [0.5] * 4
    assert high_share(torch.tensor([1.0, 2.0, 2.0, 3.0])).tolist() == [0.0, 0.5, 0.5, 1.0]
    assert high_share(torch.tensor([1.0, 2.0, 3.0])).tolist() == [0.0, 1.0, 1.0]
    x = by_length([4, 4, 4, 4])
    assert canon_length(x).tolist() == pytest.approx(dr_grpo(x).tolist())


def test_canon_length_refuses_its_arguments():
    with pytest.raises(ValueError, match="canon_length"):
        canon_length(by_length([1, 2, 3, 4]), mu=2.0)
