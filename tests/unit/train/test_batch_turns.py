"""train.batch: rows that are steps of a trajectory say their turn and their state, so that step credit works on them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.batches import batch_for
from tests.support.builders import group, sample
from vlmrl.algo.advantage.gigpo import gigpo
from vlmrl.errors import ConfigError
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import by_trajectory
from vlmrl.train.stage.providers import turns
from vlmrl.types import ScoredGroup, Scores


def scored(place: int, rewards: list[float], **trajectory: object) -> tuple[int, ScoredGroup]:
    """The rollouts of one row, with these rewards."""
    row = sample(id=f"row-{place}", meta={"trajectory": trajectory} if trajectory else {})
    of_row = dataclasses.replace(group(["x"] * len(rewards), row), id=f"g{place}")
    return place, ScoredGroup(group=of_row, scores=Scores(columns=("task",), weights=(1.0,), rewards_GK=tuple((r,) for r in rewards)))


def batch_of(*groups: tuple[int, ScoredGroup]) -> StepBatch:
    return batch_for(groups, "trajectory_N", "turn_N", "state_N", "sample_N")


def test_step_credit_on_rows_compares_rollouts_of_a_row():
    made = batch_of(scored(4, [1.0, 0.0], id="t", step=0), scored(5, [1.0, 0.0], id="t", step=1))
    x = by_trajectory(made.x, made.trajectories)
    assert x.provided["turn_N"].tolist() == [0, 0, 1, 1]
    assert x.provided["state_N"].tolist() == [4, 4, 5, 5]
    # returns 2 and 0; Q at the first row 1.5 and 0, at the second 1 and 0
    assert gigpo(x, gamma=0.5).tolist() == pytest.approx([1.75, -1.75, 1.5, -1.5])


def test_a_row_has_the_same_id_at_every_place():
    a = batch_of(scored(0, [1.0]), scored(1, [1.0])).x.provided["sample_N"]
    one = dataclasses.replace(scored(1, [1.0])[1])
    b = batch_of((9, one)).x.provided["sample_N"]
    assert a.dtype == torch.int64
    assert int(a[1]) == int(b[0]) != int(a[0])


def test_rows_that_do_not_say_their_step_have_no_turns():
    assert "turn_N" not in batch_of(scored(0, [1.0], id="t")).x.provided
    assert "turn_N" not in batch_of(scored(0, [1.0], id="t", step=True)).x.provided


def test_turns_are_given_on_every_rank_or_on_none(monkeypatch: pytest.MonkeyPatch):
    batch = batch_of(scored(4, [1.0, 0.0], id="t", step=1))
    assert turns.turns(None, batch, None)["turn_N"].tolist() == [1, 1]  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(turns.dist, "gather", lambda own: [own, False])  # some row of another rank does not say its step
    assert turns.turns(None, batch, None) == {}  # pyright: ignore[reportArgumentType]


def test_a_method_of_turns_refuses_rows_that_do_not_say_their_step():
    made = batch_of(scored(0, [1.0], id="t"))
    assert by_trajectory(made.x, made.trajectories, ("trajectory_N",)).group_N.tolist() == [0]
    with pytest.raises(ConfigError, match=r"`trajectory\.step`"):
        by_trajectory(made.x, made.trajectories, ("trajectory_N", "turn_N"))
