"""algo.reward_shaping.budget_schedule: triangle and schedule of arXiv:2508.08940."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.reward_shaping.budget_schedule import budget, budget_schedule, efficiency


def shaped(lengths, rewards, progress=0.0, **arguments):
    x = inputs([(r, 0, r == r) for r in rewards])
    x = dataclasses.replace(x, length_N=torch.tensor(lengths, dtype=torch.int64), progress=progress)
    return budget_schedule(x.rewards_NK, x.valid_N, x, reward="task", **arguments)[:, 0].tolist()


def test_triangle_and_plateau():
    length = torch.tensor([0, 50, 100, 150, 200, 300])
    assert efficiency(length, 100, form="triangle").tolist() == [0, 0.5, 1, 0.5, 0, 0]
    assert efficiency(length, 100, form="plateau").tolist() == [1, 1, 1, 0.5, 0, 0]


@pytest.mark.parametrize(("step", "tokens"), [(0, 256), (99, 256), (100, 179), (199, 179), (200, 125), (250, 125), (300, 87), (400, 87)])
def test_the_papers_schedule_over_400_steps(step, tokens):
    """256 * 0.7^floor(t / 100) is 256, 179.2, 125.44, 87.81."""
    assert budget(step / 400, start=256, decay=0.7, drops=3) == tokens


@pytest.mark.parametrize("plateaus", [3, 7, 10, 49])
def test_every_plateau_starts_on_its_step(plateaus):
    starts = [budget(k * 20 / (plateaus * 20), start=10**9, decay=0.9, drops=plateaus - 1) for k in range(plateaus)]
    assert starts == [int(10**9 * 0.9**k) for k in range(plateaus)]


def test_budget_schedule():
    # last quarter: budget 87; 87 tokens fit exactly, 174 are twice as many
    assert shaped([87, 174, 0], [1.0, 1.0, 0.0], progress=0.8) == [1.5, 1.0, 0.0]
    assert shaped([128, 384], [1.0, 0.0], weight=0.2) == pytest.approx([1.1, 0.1])
    assert shaped([1], [1.0], form="plateau") == [1.5]
    assert str(shaped([100], [float("nan")])) == "[nan]"


def test_the_budget_never_falls_below_one_token():
    assert budget(1.0, start=3, decay=0.1, drops=9) == 1


@given(a=st.floats(0, 1), b=st.floats(0, 1), start=st.integers(1, 4096), decay=st.floats(0.01, 1), drops=st.integers(0, 12))
def test_the_budget_never_grows(a, b, start, decay, drops):
    early, late = sorted((a, b))
    assert 1 <= budget(late, start=start, decay=decay, drops=drops) <= budget(early, start=start, decay=decay, drops=drops) <= start


@given(length=st.integers(0, 5000), tokens=st.integers(1, 2000), weight=st.floats(0, 0.99))
def test_a_weight_below_one_keeps_right_above_wrong(length, tokens, weight):
    best_wrong, worst_right = shaped([tokens, length], [0.0, 1.0], start=tokens, weight=weight)
    assert worst_right > best_wrong


@pytest.mark.parametrize("wrong", [{"start": 0}, {"decay": 1.5}, {"decay": 0.0}, {"drops": -1}])
def test_impossible_schedules_are_refused(wrong):
    with pytest.raises(ValueError, match="needs start >= 1"):
        shaped([1], [1.0], **wrong)
