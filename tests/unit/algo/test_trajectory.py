"""algo.advantage.trajectory: one advantage per attempt at a task."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.algo.advantage.trajectory import trajectory

NAN = float("nan")


def steps(*attempts, group=0):
    """Each attempt is the rewards of its steps."""
    rows = [(r, group, r == r) for attempt in attempts for r in attempt]
    ids = [i for i, attempt in enumerate(attempts) for _ in attempt]
    return dataclasses.replace(inputs(rows), trajectory_N=torch.tensor(ids, dtype=torch.int64))


def test_trajectory():
    # R: success in three steps 1, success with one malformed action 0.5, failure 0; mean 0.5, sample deviation 0.5
    x = steps([0, 0, 1], [0, -0.5, 0, 1], [0])
    assert trajectory(x, epsilon=0.0).tolist() == pytest.approx([1.0] * 3 + [0.0] * 4 + [-1.0])


def test_a_long_attempt_counts_once():
    short, long = steps([1], [0], [0]), steps([0] * 9 + [1], [0], [0] * 5)
    a, b = trajectory(short), trajectory(long)
    torch.testing.assert_close(b[:10], a[0].expand(10))
    torch.testing.assert_close(b[10:], a[1].expand(6))


def test_mean_is_for_rows_that_carry_the_whole_reward():
    x = steps([1, 1, 1], [0.5], [0, 0])
    assert trajectory(x, combine="mean", epsilon=0.0).tolist() == pytest.approx([1.0] * 3 + [0.0] + [-1.0] * 2)


def test_a_crash_is_no_failure():
    x = steps([0, 1], [0, NAN], [0, 0])
    assert trajectory(x, epsilon=0.0).tolist() == pytest.approx([0.7071068] * 2 + [0.0] * 2 + [-0.7071068] * 2)


def test_all_the_same_is_nothing_and_a_replayed_success_is_something():
    assert trajectory(steps([0, 0], [0], [0, 0, 0])).tolist() == [0.0] * 6
    replayed = trajectory(steps([0, 1], [0], [0, 0, 0]))
    assert replayed[0] == replayed[1] > 0 > replayed[2] == replayed[5]


def test_tasks_do_not_see_each_other():
    a, b = steps([0, 1], [0, 0]), steps([1], [-0.5, 0], group=4)
    rows = [(float(r), int(g), True) for x in (a, b) for r, g in zip(x.reward_N, x.group_N, strict=True)]
    both = dataclasses.replace(inputs(rows), trajectory_N=torch.tensor([0, 0, 1, 1, 5, 6, 6]))
    torch.testing.assert_close(trajectory(both), torch.cat([trajectory(a), trajectory(b)]))


@given(rewards=st.lists(st.sampled_from([0.0, 0.3, 1.0, NAN]), min_size=1, max_size=8))
def test_one_step_each_is_grpo(rewards):
    x = steps(*[[r] for r in rewards])
    torch.testing.assert_close(trajectory(x), grpo(x))


@given(data=st.data(), attempts=st.lists(st.lists(st.sampled_from([0.0, -0.5, 1.0]), min_size=1, max_size=4), min_size=1, max_size=5))
def test_steps_of_an_attempt_share_one_number_in_any_order(attempts, data):
    x = steps(*attempts)
    out = trajectory(x)
    for i in range(len(attempts)):
        assert out[x.provided["trajectory_N"] == i].unique().numel() == 1
    order = data.draw(st.permutations(range(len(out))))
    mixed = dataclasses.replace(
        inputs([(float(x.reward_N[i]), 0, True) for i in order]),
        trajectory_N=x.provided["trajectory_N"][torch.tensor(order, dtype=torch.int64)],
    )
    torch.testing.assert_close(trajectory(mixed), out[order])


def test_what_is_missing_or_wrong_is_said():
    with pytest.raises(ValueError, match="'trajectory' needs trajectory_N"):
        trajectory(inputs([(1.0, 0, True)]))
    x = dataclasses.replace(inputs([(1.0, 0, True), (0.0, 1, True)]), trajectory_N=torch.tensor([8, 8]))
    with pytest.raises(ValueError, match="trajectory 8 are in several groups"):
        trajectory(x)
