"""From scored groups to the flat tensors that pure methods see: rewards of all ranks, groups in plan order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.answers.tags import parse
from vlmrl.errors import ConfigError
from vlmrl.train import dist
from vlmrl.types import Rollout, Sample, ScoredGroup


@dataclass(frozen=True, kw_only=True)
class RewardTable:
    """Rewards of all ranks as flat lists; `mine` are the places of this rank's rows."""

    inputs: AdvantageInputs
    mine: list[int]
    weights_K: torch.Tensor
    trajectories: list[str | None]
    """Trajectory that each row is a step of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """What other ranks must know of one rollout."""

    rewards: tuple[float | None, ...]
    on_policy: bool
    length: int
    logp: float
    truncated: bool
    answer: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """What other ranks must know of one group."""

    place: int
    rank: int
    task: str
    columns: tuple[str, ...]
    weights: tuple[float, ...]
    baseline: float
    trajectory: str | None
    rows: list[_Row]


def reward_table(groups: Sequence[tuple[int, ScoredGroup]], *, baseline: Callable[[str], float | None], progress: float) -> RewardTable:
    """Gather every rank's groups: advantages may rank across the whole batch.

    Args:
        groups: (place in the plan, scored group) of this rank.
        baseline: value of a sample before this step, from the ledger; None where it was never seen.
        progress: share of the stage that is done.
    """
    local = [_describe(place, scored, baseline) for place, scored in groups]
    everything = sorted((item for of_rank in dist.gather(local) for item in of_rank), key=lambda item: item.place)
    tasks = sorted({item.task for item in everything})
    rows = [(item, k, row) for item in everything for k, row in enumerate(item.rows)]
    rewards_NK = torch.tensor([[float("nan") if r is None else r for r in row.rewards] for _, _, row in rows], dtype=torch.float64).view(
        len(rows), len(everything[0].columns)
    )
    weights_K = torch.tensor(everything[0].weights, dtype=torch.float64)
    inputs = AdvantageInputs(
        reward_N=total(rewards_NK, weights_K),
        rewards_NK=rewards_NK,
        valid_N=(~rewards_NK.isnan()).any(dim=1),
        group_N=torch.tensor([item.place for item, _, _ in rows]),
        task_N=torch.tensor([tasks.index(item.task) for item, _, _ in rows]),
        on_policy_N=torch.tensor([row.on_policy for _, _, row in rows]),
        length_N=torch.tensor([row.length for _, _, row in rows]),
        columns=tuple(everything[0].columns),
        answer_N=torch.tensor(_clusters(everything)),
        logp_N=torch.tensor([row.logp for _, _, row in rows], dtype=torch.float64),
        baseline_N=torch.tensor([item.baseline for item, _, _ in rows], dtype=torch.float64),
        truncated_N=torch.tensor([row.truncated for _, _, row in rows]),
        trajectory_N=_attempts([(item.trajectory, k) for item, k, _ in rows]),
        progress=progress,
        tasks=tuple(tasks),
        weights_K=weights_K,
    )
    mine = [n for n, (item, _, _) in enumerate(rows) if item.rank == dist.rank()]
    return RewardTable(inputs=inputs, mine=mine, weights_K=weights_K, trajectories=[item.trajectory for item, _, _ in rows])


def _describe(place: int, scored: ScoredGroup, baseline: Callable[[str], float | None]) -> _Group:
    prompt = scored.group.prompt
    value = baseline(prompt.sample.id)
    pairs = zip(scored.scores.rewards_GK, scored.group.rollouts, strict=True)
    return _Group(
        place=place,
        rank=dist.rank(),
        task=prompt.sample.task,
        columns=scored.scores.columns,
        weights=scored.scores.weights,
        baseline=float("nan") if value is None else value,
        trajectory=trajectory_id(prompt.sample),
        rows=[_row(rewards, rollout, prompt.answer_format) for rewards, rollout in pairs],
    )


def _row(rewards: tuple[float | None, ...], rollout: Rollout, answer_format: str) -> _Row:
    answer = parse(rollout.text, answer_format).answer
    return _Row(
        rewards=rewards,
        on_policy=rollout.on_policy,
        length=len(rollout.ids),
        logp=sum(rollout.logprobs) if rollout.on_policy else float("nan"),
        truncated=rollout.finish == "length",
        answer=None if answer is None else " ".join(answer.casefold().split()),
    )


def trajectory_id(sample: Sample) -> str | None:
    """The trajectory that a sample is a step of: `trajectory.id` of its row's meta."""
    trajectory: Any = sample.meta.get("trajectory")
    found = trajectory.get("id") if isinstance(trajectory, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return None if found is None else str(found)  # pyright: ignore[reportUnknownArgumentType]


def _clusters(groups: Sequence[_Group]) -> list[int]:
    """Number of each row's answer among the different answers of its group; -1 without an answer."""
    out: list[int] = []
    for item in groups:
        seen: dict[str, int] = {}
        out += [-1 if row.answer is None else seen.setdefault(row.answer, len(seen)) for row in item.rows]
    return out


def _attempts(steps: Sequence[tuple[str | None, int]]) -> torch.Tensor | None:
    """Number of the attempt (trajectory, k) that each row is a step of; None where some row is of no trajectory."""
    if any(trajectory is None for trajectory, _ in steps):
        return None
    known = {step: number for number, step in enumerate(sorted({(str(t), k) for t, k in steps}))}
    return torch.tensor([known[(str(t), k)] for t, k in steps])


def by_trajectory(x: AdvantageInputs, names: Sequence[str | None]) -> AdvantageInputs:
    """The same rows grouped by the trajectory that they are steps of, for methods that ask for `trajectory_N`.

    Args:
        names: trajectory of each row.

    Raises:
        ConfigError: a row is of no trajectory.
    """
    if x.trajectory_N is None or any(name is None for name in names):
        raise ConfigError("a method that needs trajectories is used on rows without `trajectory.id` in their meta; add it or use another")
    known = {name: number for number, name in enumerate(sorted({str(name) for name in names}))}
    return dataclasses.replace(x, group_N=torch.tensor([known[str(name)] for name in names]))


def total(rewards_NK: torch.Tensor, weights_K: torch.Tensor) -> torch.Tensor:
    """Weighted sum over the judged columns, [N]; NaN where none was judged."""
    judged = ~rewards_NK.isnan()
    out = torch.where(judged, rewards_NK * weights_K, torch.zeros_like(rewards_NK)).sum(dim=1)
    return torch.where(judged.any(dim=1), out, torch.full_like(out, float("nan")))
