"""train.stage.table: rows that are steps of a trajectory say their turn and their state, so that step credit works on them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import group, sample
from vlmrl.algo.advantage.gigpo import gigpo
from vlmrl.errors import ConfigError
from vlmrl.train.stage.table import RewardTable, by_trajectory, reward_table
from vlmrl.types import ScoredGroup, Scores


def scored(place: int, rewards: list[float], **trajectory: object) -> tuple[int, ScoredGroup]:
    """The rollouts of one row, with these rewards."""
    row = sample(id=f"row-{place}", meta={"trajectory": trajectory} if trajectory else {})
    of_row = dataclasses.replace(group(["x"] * len(rewards), row), id=f"g{place}")
    return place, ScoredGroup(group=of_row, scores=Scores(columns=("task",), weights=(1.0,), rewards_GK=tuple((r,) for r in rewards)))


def table(*groups: tuple[int, ScoredGroup]) -> RewardTable:
    return reward_table(groups, baseline=lambda _: None, progress=0.0)


def test_step_credit_on_rows_compares_rollouts_of_a_row():
    made = table(scored(4, [1.0, 0.0], id="t", step=0), scored(5, [1.0, 0.0], id="t", step=1))
    x = by_trajectory(made.inputs, made.trajectories)
    assert x.turn_N is not None
    assert x.state_N is not None
    assert x.turn_N.tolist() == [0, 0, 1, 1]
    assert x.state_N.tolist() == [4, 4, 5, 5]
    # returns 2 and 0; Q at the first row 1.5 and 0, at the second 1 and 0
    assert gigpo(x, gamma=0.5).tolist() == pytest.approx([1.75, -1.75, 1.5, -1.5])


def test_a_row_has_the_same_id_at_every_place():
    a = table(scored(0, [1.0]), scored(1, [1.0])).inputs
    one = dataclasses.replace(scored(1, [1.0])[1])
    b = table((9, one)).inputs
    assert a.sample_N is not None
    assert b.sample_N is not None
    assert a.sample_N.dtype == torch.int64
    assert int(a.sample_N[1]) == int(b.sample_N[0]) != int(a.sample_N[0])


def test_rows_that_do_not_say_their_step_have_no_turns():
    assert table(scored(0, [1.0], id="t")).inputs.turn_N is None
    assert table(scored(0, [1.0], id="t", step=True)).inputs.turn_N is None


def test_a_method_of_turns_refuses_rows_that_do_not_say_their_step():
    made = table(scored(0, [1.0], id="t"))
    assert by_trajectory(made.inputs, made.trajectories, ("trajectory_N",)).turn_N is None
    with pytest.raises(ConfigError, match=r"`trajectory\.step`"):
        by_trajectory(made.inputs, made.trajectories, ("trajectory_N", "turn_N"))
