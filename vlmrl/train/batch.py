"""The rollouts of a step, flat: columns over all ranks with the groups in plan order, which rows are this rank's, and which rows train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.policy.pack import Row, response_mask
from vlmrl.train import dist
from vlmrl.types import Rollout, Sample, ScoredGroup, TurnRollout


@dataclass(kw_only=True)
class StepBatch:
    """The rollouts of a step, over all ranks and on this one. `mine` leads from one to the other: `batch.x.reward_N[batch.mine]` are the
    rewards of `batch.rollouts`."""

    # ---- over all ranks, an entry per rollout [N]: the same on every rank ----
    x: AdvantageInputs
    """What the methods see. What they need beyond the rewards comes into its `provided` (`stage.provide`)."""
    trajectories: list[str | None]
    """Trajectory that each row is a step of; with an environment the task of the attempt that it is a turn of."""
    attempt_N: torch.Tensor | None
    """int64 id of the attempt that each row is a step of, unique over all ranks; None where some row is of no trajectory."""
    baseline_N: torch.Tensor
    """float64 value of each row's prompt before this step, from the ledger; NaN where it was never seen."""
    turns: bool
    """Whether the rows are the turns of attempts in an environment."""
    keep_N: torch.Tensor
    """bool: rows that the filters keep."""
    counted_N: torch.Tensor
    """bool: rows that the advantage may see. Filters registered with `before_advantage` take rows out of its statistics too."""

    # ---- of this rank, an entry per rollout [n] ----
    mine: torch.Tensor
    """int64: places of this rank's rows among all."""
    groups: list[tuple[int, ScoredGroup]]
    """(place in the plan, group)."""
    rows: list[Row]
    rollouts: list[Rollout]
    mask_NT: torch.Tensor
    """bool: the responses' tokens, of this rank's rows."""

    measured: dict[str, float] = field(default_factory=dict[str, float])
    """What is logged of the batch beside its rewards."""

    @staticmethod
    def of(groups: list[tuple[int, ScoredGroup]], *, baseline: Callable[[str], float | None], progress: float) -> StepBatch:
        """Gather every rank's groups: advantages may rank across the whole batch. No row is filtered yet.

        Args:
            groups: (place in the plan, scored group) of this rank.
            baseline: value of a sample before this step, from the ledger; None where it was never seen.
            progress: share of the stage that is done.

        Returns:
            Columns over all ranks that are the same on each, with the rows of this one.
        """
        local = [_record(place, scored, baseline) for place, scored in groups]
        # in plan order, whichever rank has a group: every rank computes the same, however many there are
        everything = sorted((record for of_rank in dist.gather(local) for record in of_rank), key=lambda record: record.place)
        x = _columns(everything, progress)
        owners = [(record, k, attempt) for record in everything for k, attempt in enumerate(record.attempts)]
        rows = _rows(groups)
        return StepBatch(
            x=x,
            trajectories=[record.trajectory for record, _, _ in owners],
            attempt_N=_attempts([(record.trajectory, k if attempt is None else attempt) for record, k, attempt in owners]),
            baseline_N=torch.tensor([record.baseline for record, _, _ in owners], dtype=torch.float64),
            turns=any(attempt is not None for _, _, attempt in owners),
            keep_N=torch.ones(len(owners), dtype=torch.bool),
            counted_N=x.valid_N.clone(),
            # `groups` stand in plan order too, so the n-th of these is the n-th of `rows`
            mine=torch.tensor([n for n, (record, _, _) in enumerate(owners) if record.rank == dist.rank()], dtype=torch.int64),
            groups=groups,
            rows=rows,
            rollouts=[rollout for _, scored in groups for rollout in scored.group.rollouts],
            mask_NT=response_mask(rows),
        )

    def keep_first(self, count: int) -> None:
        """Keep only the first `count` of the kept groups, in plan order."""
        self.keep_N = self.keep_N & torch.isin(self.x.group_N, torch.tensor(self._kept_groups()[:count]))

    def kept_groups(self) -> int:
        """Count the groups, of all ranks, with a row that is kept."""
        return len(self._kept_groups())

    def _kept_groups(self) -> list[int]:
        return sorted(set(self.x.group_N[self.keep_N].tolist()))

    def kept(self) -> list[int]:
        """This rank's rows that train, as places in `rows`: those that the filters keep, less those that `trains_N` leaves out."""
        trains_N = self.x.provided.get("trains_N")
        train_N = self.keep_N if trains_N is None else self.keep_N & trains_N.bool()
        # [N] of all ranks -> [n] of this one -> places
        return train_N[self.mine].nonzero()[:, 0].tolist()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Record:
    """Facts of one group that other ranks must know; the tuples have an entry for each of its rollouts."""

    place: int
    rank: int
    task: str
    columns: tuple[str, ...]
    weights: tuple[float, ...]
    baseline: float
    trajectory: str | None
    rewards: tuple[tuple[float | None, ...], ...]
    on_policy: tuple[bool, ...]
    lengths: tuple[int, ...]
    attempts: tuple[int | None, ...]
    """Of turns in an environment."""


def _record(place: int, scored: ScoredGroup, baseline: Callable[[str], float | None]) -> _Record:
    prompt, rollouts = scored.group.prompt, scored.group.rollouts
    value = baseline(prompt.sample.id)
    plays = any(isinstance(rollout, TurnRollout) for rollout in rollouts)
    if len(scored.scores.rewards_GK) != len(rollouts):
        raise ValueError(f"group {scored.group.id}: {len(scored.scores.rewards_GK)} rows of rewards for {len(rollouts)} rollouts")
    return _Record(
        place=place,
        rank=dist.rank(),
        task=prompt.sample.task,
        columns=scored.scores.columns,
        weights=scored.scores.weights,
        baseline=float("nan") if value is None else value,
        # by the place and not by the row: a step that crosses an epoch may hold a task twice
        trajectory=f"attempts at {place}" if plays else trajectory_id(prompt.sample),
        rewards=scored.scores.rewards_GK,
        on_policy=tuple(rollout.on_policy for rollout in rollouts),
        lengths=tuple(len(rollout.ids) for rollout in rollouts),
        attempts=tuple(rollout.attempt if isinstance(rollout, TurnRollout) else None for rollout in rollouts),
    )


def _columns(records: Sequence[_Record], progress: float) -> AdvantageInputs:
    """Make the inputs of the methods, from the groups of all ranks in plan order."""
    # of the first: all groups of a stage are scored by the same rewards
    columns, weights_K = records[0].columns, torch.tensor(records[0].weights, dtype=torch.float64)
    # sorted: a set of texts has another order in every process, and the ids must be those of all ranks
    tasks = sorted({record.task for record in records})
    # None, a reward that could not judge, is no 0: NaN marks it
    rewards = [[float("nan") if r is None else r for r in row] for record in records for row in record.rewards]
    rewards_NK = torch.tensor(rewards, dtype=torch.float64).view(len(rewards), len(columns))
    return AdvantageInputs(
        reward_N=total(rewards_NK, weights_K),
        rewards_NK=rewards_NK,
        valid_N=(~rewards_NK.isnan()).any(dim=1) | (rewards_NK.shape[1] == 0),  # judged by one reward at least, where there is one
        group_N=torch.tensor([record.place for record in records for _ in record.rewards]),
        task_N=torch.tensor([tasks.index(record.task) for record in records for _ in record.rewards]),
        on_policy_N=torch.tensor([flag for record in records for flag in record.on_policy]),
        length_N=torch.tensor([length for record in records for length in record.lengths]),
        columns=tuple(columns),
        tasks=tuple(tasks),
        weights_K=weights_K,
        provided={"progress": torch.tensor(progress, dtype=torch.float64)},
    )


def _rows(groups: Sequence[tuple[int, ScoredGroup]]) -> list[Row]:
    """This rank's rollouts as rows of a forward pass, each under the prompt that it trains under."""
    triples = [(place, scored, rollout) for place, scored in groups for rollout in scored.group.rollouts]
    return [
        Row(
            index=n,
            group=place,
            prompt=scored.group.trained_under(rollout),
            response=rollout.ids,
            turn=rollout.turn if isinstance(rollout, TurnRollout) else None,
            routes=rollout.routes,
        )
        for n, (place, scored, rollout) in enumerate(triples)
    ]


def _attempts(steps: Sequence[tuple[str | None, int]]) -> torch.Tensor | None:
    """Number the attempt (trajectory, k) that each row is a step of; None where some row is of no trajectory."""
    if any(trajectory is None for trajectory, _ in steps):
        return None
    known = {step: number for number, step in enumerate(sorted({(str(t), k) for t, k in steps}))}
    return torch.tensor([known[(str(t), k)] for t, k in steps])


def trajectory_id(sample: Sample) -> str | None:
    """Read the trajectory that a sample is a step of: `trajectory.id` of its row's meta."""
    trajectory: Any = sample.meta.get("trajectory")
    found = trajectory.get("id") if isinstance(trajectory, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return None if found is None else str(found)  # pyright: ignore[reportUnknownArgumentType]


def total(rewards_NK: torch.Tensor, weights_K: torch.Tensor | None) -> torch.Tensor:
    """Sum the judged columns by their weights, with a weight of 1 each where None is given.

    Returns:
        [N]; NaN where none was judged, and 0 where there is no column to judge by.
    """
    judged = ~rewards_NK.isnan()
    # not a product with the mask, in which NaN * 0 would be NaN: [N, K] -> [N]
    out = torch.where(judged, rewards_NK if weights_K is None else rewards_NK * weights_K, torch.zeros_like(rewards_NK)).sum(dim=1)
    return torch.where(judged.any(dim=1) | (judged.shape[1] == 0), out, torch.full_like(out, float("nan")))


def sampler_logprobs(rollouts: Sequence[Rollout], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Split what the sampler reported into that of rows that train under the prompt and policy that sampled them, and that of rows whose
    ratio is taken against it.

    A row that was sampled under a hint and trains without it, or was sampled long ago, has no log-prob to compare with the trainer's.

    Returns:
        (of the first, of the second), [N, width] each, in nats; NaN elsewhere.
    """
    sampled, given = (torch.full((len(rollouts), width), float("nan")) for _ in range(2))
    # NaN and not 0, which is a log-prob: rows of ground truth have none at all
    for n, rollout in enumerate(rollouts):
        values = torch.tensor(rollout.logprobs)
        moved = rollout.guidance is not None and rollout.guidance.train == "plain"
        if rollout.old_from_sampler:
            given[n, : len(values)] = values
        elif not moved:
            sampled[n, : len(values)] = values
    return sampled, given
