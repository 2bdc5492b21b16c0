"""Reward shaping `progress_proposed`: what goes beyond all earlier attempts earns something, once."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.reward_shaping.progress_proposed import furthest, progress_proposed

NAN = float("nan")


def columns(pairs, memory, samples):
    """(reward, potential) per row."""
    return dataclasses.replace(
        inputs([(r, 0, r == r) for r, _ in pairs]),
        rewards_NK=torch.tensor(pairs, dtype=torch.float64),
        columns=("task", "goals"),
        sample_N=torch.tensor(samples),
        memory={name: torch.tensor(value, dtype=torch.float64) for name, value in memory.items()},
    )


def shaped(x, **more):
    return progress_proposed(x.rewards_NK, x.valid_N, x, reward="task", potential="goals", **more)[:, 0].tolist()


def test_progress_proposed():
    x = columns([(0, 0.75), (1, 1.0), (0, 0.25), (0, 0.25)], {"1": 0.5}, [1, 1, 1, 2])
    assert shaped(x) == pytest.approx([0.25, 1.5, 0.0, 0.25])
    assert shaped(x, scale=0.4) == pytest.approx([0.1, 1.2, 0.0, 0.1])
    after = furthest({"1": 0.5, "3": 0.1}, x, potential="goals")
    assert after == {"1": 1.0, "3": 0.1, "2": 0.25}
    again = columns([(0, 0.75), (1, 1.0)], after, [1, 1])
    assert shaped(again) == [0.0, 1.0], "the best is paid once"


def test_what_is_not_judged_says_nothing():
    x = columns([(0, NAN), (0, 0.5)], {}, [1, 1])
    assert shaped(x) == [0.0, 0.5]
    assert furthest({}, x, potential="goals") == {"1": 0.5}


def test_wrong_arguments_are_refused():
    x = columns([(0, 0.5)], {}, [1])
    with pytest.raises(ValueError, match="scale is 0"):
        shaped(x, scale=0.0)
    with pytest.raises(ValueError, match="needs its memory"):
        shaped(dataclasses.replace(x, memory=None))
    with pytest.raises(ValueError, match="'progress_proposed' needs sample_N"):
        shaped(dataclasses.replace(x, sample_N=None))
