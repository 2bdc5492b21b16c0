"""Which attempt each row is a step of, which turn of it, and in which state.

For rows that belong to a trajectory (`trajectory` in their meta), and for the turns in an environment. What some row of any rank does not
have is not provided at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vlmrl import rng
from vlmrl.train import dist
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.types import Rollout, Sample, TurnRollout, digest


@provides("trajectory_N")
def attempts(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Id of the attempt that each row is a step of, int64 [n], unique over all ranks. With an environment the group is the task that is
    attempted; else attempt k is the k-th rollout to each of the trajectory's rows."""
    return {} if batch.attempt_N is None else {"trajectory_N": batch.attempt_N[batch.mine]}


@provides("turn_N")
def turns(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Number of each row's turn within its attempt, from 0, int64 [n]."""
    numbers = [row.turn if isinstance(row, TurnRollout) else _step(sample) for sample, _, row in _rows(batch)]
    known = [number for number in numbers if number is not None]
    return {"turn_N": torch.tensor(known, dtype=torch.int64)} if all(dist.gather(len(known) == len(numbers))) else {}


@provides("state_N")
def states(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Id of the state that each turn was taken in, int64 [n]: equal within a group where the state is.

    Without an environment a row's screen is the state, and all its rollouts meet it.
    """
    found = [rng.key(place, "state", row.state) if isinstance(row, TurnRollout) else place for _, place, row in _rows(batch)]
    return {"state_N": torch.tensor(found, dtype=torch.int64)}


@provides("node_N")
def nodes(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Id of what an attempt has seen and said up to and with each turn, int64 [n]: equal where attempts of a group are one so far. Only of
    turns in an environment.

    A prompt that begins anew (`history.screens`) may be the same after different pasts: what came before counts too.
    """
    turns = [(place, row) for _, place, row in _rows(batch) if isinstance(row, TurnRollout)]
    if not all(dist.gather(len(turns) == len(batch.rollouts))):
        return {}
    so_far: dict[tuple[int, int], int] = {}
    out = [0] * len(turns)
    for n in sorted(range(len(turns)), key=lambda n: turns[n][1].turn):
        place, row = turns[n]
        before = so_far.get((place, row.attempt), place)
        said = digest([list(row.prompt.ids), [handle.key for handle in row.prompt.media], list(row.ids)])
        out[n] = so_far[place, row.attempt] = rng.key(before, "node", said)
    return {"node_N": torch.tensor(out, dtype=torch.int64)}


def _rows(batch: StepBatch) -> Sequence[tuple[Sample, int, Rollout]]:
    """(sample, place of the group in the plan, rollout) of each row."""
    return [(scored.group.prompt.sample, place, rollout) for place, scored in batch.groups for rollout in scored.group.rollouts]


def _step(sample: Sample) -> int | None:
    """The number of the step in its trajectory: `trajectory.step` of its row's meta."""
    trajectory: Any = sample.meta.get("trajectory")
    found = trajectory.get("step") if isinstance(trajectory, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return found if type(found) is int else None  # pyright: ignore[reportUnknownArgumentType]
