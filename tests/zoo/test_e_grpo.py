"""Shaping `e_grpo`: wrong answers that name more of what the question is about."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.zoo.reward_shaping.e_grpo import e_grpo


def shaped(rows, **arguments):
    """(accuracy, matched) of one group."""
    x = inputs([(a, 0, True) for a, _ in rows])
    rewards = torch.tensor(rows, dtype=torch.float64)
    x = dataclasses.replace(x, columns=("accuracy", "matched"), rewards_NK=rewards)
    return e_grpo(rewards, x.valid_N, x, reward="accuracy", matched="matched", **arguments)[:, 0].tolist()


@pytest.mark.parametrize(
    ("rows", "rewards", "advantages"),
    [
        ([(1, 0.8), (0, 0.4), (0, 0.2), (0, 0)], [1, 0.15, 0.075, 0], [1.487, -0.3349, -0.4957, -0.6564]),
        ([(0, 0), (0, 0.4), (0, 0.2), (0, 0)], [0, 0.3, 0.15, 0], [-0.7833, 1.3056, 0.2611, -0.7833]),
    ],
)
def test_e_grpo_by_hand(rows, rewards, advantages):
    out = shaped(rows)
    assert out == pytest.approx(rewards)
    assert grpo(inputs([(r, 0, True) for r in out]), epsilon=0.0).tolist() == pytest.approx(advantages, abs=1e-3)


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=1, max_size=8), st.floats(0, 0.99))
def test_e_grpo_keeps_wrong_below_right(rows, alpha):
    out = shaped(rows, alpha=alpha)
    assert all(v == 1.0 if right else v <= alpha + 1e-12 for v, (right, _) in zip(out, rows, strict=True))


def test_e_grpo_of_nothing_changes_nothing():
    assert shaped([(1, 0.5), (0, 0.5)], alpha=0.0) == [1.0, 0.0]
    assert shaped([(1, 0), (0, 0)]) == [1.0, 0.0]
    with pytest.raises(ValueError, match="alpha"):
        shaped([(1, 0)], alpha=1.0)
