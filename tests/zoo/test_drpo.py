"""algo.group_loss.drpo."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.zoo.group_loss.disco import disco
from vlmrl.zoo.group_loss.drpo import drpo


def weights(score, label, tokens, loss=drpo, group=None, **arguments):
    """(J, dJ/ds)."""
    leaf = torch.tensor(score, dtype=torch.float64, requires_grad=True)
    of = torch.zeros(len(score), dtype=torch.int64) if group is None else torch.tensor(group)
    value = loss(leaf, torch.tensor(label).double(), of, None, torch.tensor(tokens), **{"beta": 0.0, **arguments})
    (grad,) = torch.autograd.grad(value, leaf)
    return -float(value.detach()), (-grad).tolist()


def test_drpo_by_hand():
    value, found = weights([-0.2, -0.2, -0.3, -0.6], [1.0, 1.0, -1.0, -1.0], [1000, 4000, 9, 9])
    assert found == pytest.approx([0.975, 0.025, -0.5075, -0.4925], abs=1e-3)
    assert value == pytest.approx(-0.2 + 0.4489, abs=1e-4)
    assert weights([-0.2, -0.2, -0.3], [1.0, 1.0, -1.0], [1000, 4000, 9], temper=10.0)[1][:2] == pytest.approx([0.509, 0.491], abs=1e-3)


@given(st.lists(st.integers(1, 8192), min_size=1, max_size=6), st.sampled_from([1e-3, 0.1, 5.0]))
def test_drpo_never_pushes_a_right_answer_down(lengths, temper):
    n = len(lengths)
    _, found = weights([-0.5] * n + [-1.0], [1.0] * n + [-1.0], [*lengths, 7], temper=temper)
    assert all(w >= 0 for w in found[:n])
    assert math.fsum(found[:n]) == pytest.approx(1.0)


def test_drpo_without_preference_is_disco():
    score, label, tokens = [-0.2, -0.4, -0.3, -0.6], [1.0, 1.0, -1.0, -1.0], [100, 4000, 50, 60]
    assert weights(score, label, tokens, temper=1e12)[1] == pytest.approx(weights(score, label, tokens, loss=disco)[1], abs=1e-6)


def test_drpo_averages_over_all_questions_and_has_a_trust_region():
    value, found = weights([-0.2, -0.3, -0.5], [1.0, -1.0, 0.0], [5, 5, 5], group=[0, 0, 1])
    assert value == pytest.approx(0.05)
    assert found[2] == 0.0
    zeros, kl = torch.zeros(2).double(), torch.tensor([0.02, 0.0]).double()
    outside = drpo(zeros, torch.tensor([1.0, -1.0]), torch.zeros(2, dtype=torch.int64), kl, torch.tensor([1, 1]))
    assert float(outside) == pytest.approx(500 * (0.01 - 1e-4) ** 2)
    with pytest.raises(ValueError, match="tokens_N"):
        drpo(zeros, zeros, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="temper"):
        drpo(zeros, zeros, torch.zeros(2, dtype=torch.int64), kl, torch.tensor([1, 1]), temper=0.0)
