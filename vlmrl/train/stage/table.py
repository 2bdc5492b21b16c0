"""From scored groups to the flat tensors that pure methods see (rewards of all ranks, groups in plan order), and what is logged of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vlmrl.algo import segments
from vlmrl.algo.attempts import Attempts
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.answers.tags import parse
from vlmrl.errors import ConfigError
from vlmrl.train import dist
from vlmrl.types import Rollout, Sample, ScoredGroup, TurnRollout

LABEL_KEYS = ("category", "difficulty")
"""Keys of `Sample.meta` that the think rate is told apart by: the first that a stage's rows have."""
MOST_LABELS = 6
"""With more values than that a key tells nothing apart: each would have a curve of its own."""


@dataclass(frozen=True, kw_only=True)
class RewardTable:
    """Rewards of all ranks as flat lists; `mine` are the places of this rank's rows."""

    inputs: AdvantageInputs
    mine: list[int]
    weights_K: torch.Tensor
    trajectories: list[str | None]
    """Trajectory that each row is a step of; with an environment the task of the attempt that it is a turn of."""
    attempt_N: torch.Tensor | None = None
    """int64 id of the attempt that each row is a step of, unique over all ranks; None where some row is of no trajectory."""
    baseline_N: torch.Tensor
    """float64 value of each row's prompt before this step, from the ledger; NaN where it was never seen."""
    turns: bool = False
    """Whether the rows are the turns of attempts in an environment."""

    def worth(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(what each row is worth, the rows that statistics count): its reward, and all of them; of turns the sum over the attempt, and
        one turn of each."""
        x = self.inputs
        if not self.turns:
            return x.reward_N, torch.ones_like(x.valid_N)
        assert self.attempt_N is not None
        attempts = Attempts.of(dataclasses.replace(x, provided={"trajectory_N": self.attempt_N}), "a step of episodes")
        return attempts.totals(x.reward_N), attempts.first_N


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutFacts:
    """What other ranks must know of one rollout."""

    rewards: tuple[float | None, ...]
    on_policy: bool
    length: int
    attempt: int | None
    """Of a turn in an environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFacts:
    """What other ranks must know of one group."""

    place: int
    rank: int
    task: str
    columns: tuple[str, ...]
    weights: tuple[float, ...]
    baseline: float
    trajectory: str | None
    rows: list[RolloutFacts]


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
        tasks=tuple(tasks),
        weights_K=weights_K,
        provided={"progress": torch.tensor(progress, dtype=torch.float64)},
    )
    mine = [n for n, (item, _, _) in enumerate(rows) if item.rank == dist.rank()]
    return RewardTable(
        inputs=inputs,
        mine=mine,
        weights_K=weights_K,
        trajectories=[item.trajectory for item, _, _ in rows],
        attempt_N=_attempts([(item.trajectory, k if row.attempt is None else row.attempt) for item, k, row in rows]),
        baseline_N=torch.tensor([item.baseline for item, _, _ in rows], dtype=torch.float64),
        turns=any(row.attempt is not None for _, _, row in rows),
    )


def _describe(place: int, scored: ScoredGroup, baseline: Callable[[str], float | None]) -> GroupFacts:
    prompt = scored.group.prompt
    value = baseline(prompt.sample.id)
    pairs = zip(scored.scores.rewards_GK, scored.group.rollouts, strict=True)
    return GroupFacts(
        place=place,
        rank=dist.rank(),
        task=prompt.sample.task,
        columns=scored.scores.columns,
        weights=scored.scores.weights,
        baseline=float("nan") if value is None else value,
        trajectory=f"attempts at {place}" if _plays(scored) else trajectory_id(prompt.sample),
        rows=[
            RolloutFacts(
                rewards=rewards,
                on_policy=rollout.on_policy,
                length=len(rollout.ids),
                attempt=rollout.attempt if isinstance(rollout, TurnRollout) else None,
            )
            for rewards, rollout in pairs
        ],
    )


def _plays(scored: ScoredGroup) -> bool:
    """Whether the rows are the turns of attempts."""
    return any(isinstance(rollout, TurnRollout) for rollout in scored.group.rollouts)


def trajectory_id(sample: Sample) -> str | None:
    """The trajectory that a sample is a step of: `trajectory.id` of its row's meta."""
    trajectory: Any = sample.meta.get("trajectory")
    found = trajectory.get("id") if isinstance(trajectory, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return None if found is None else str(found)  # pyright: ignore[reportUnknownArgumentType]


def _attempts(steps: Sequence[tuple[str | None, int]]) -> torch.Tensor | None:
    """Number of the attempt (trajectory, k) that each row is a step of; None where some row is of no trajectory."""
    if any(trajectory is None for trajectory, _ in steps):
        return None
    known = {step: number for number, step in enumerate(sorted({(str(t), k) for t, k in steps}))}
    return torch.tensor([known[(str(t), k)] for t, k in steps])


def by_trajectory(x: AdvantageInputs, names: Sequence[str | None], needs: Sequence[str] = ()) -> AdvantageInputs:
    """The same rows grouped by the trajectory that they are steps of, for methods that ask for `trajectory_N`.

    Args:
        names: trajectory of each row.
        needs: what the method asks for.

    Raises:
        ConfigError: a row is of no trajectory, or does not say which step it is where the method asks for that.
    """
    if "trajectory_N" not in x.provided or any(name is None for name in names):
        raise ConfigError("a method that needs trajectories is used on rows without `trajectory.id` in their meta; add it or use another")
    if "turn_N" in needs and "turn_N" not in x.provided:
        raise ConfigError(
            "a method that needs turns is used on rows without `trajectory.step` (the number of the step, from 0) in their meta; add it or "
            "use another"
        )
    known = {name: number for number, name in enumerate(sorted({str(name) for name in names}))}
    return dataclasses.replace(x, group_N=torch.tensor([known[str(name)] for name in names]))


def total(rewards_NK: torch.Tensor, weights_K: torch.Tensor) -> torch.Tensor:
    """Weighted sum over the judged columns, [N]; NaN where none was judged."""
    judged = ~rewards_NK.isnan()
    out = torch.where(judged, rewards_NK * weights_K, torch.zeros_like(rewards_NK)).sum(dim=1)
    return torch.where(judged.any(dim=1), out, torch.full_like(out, float("nan")))


def sampler_logprobs(rollouts: Sequence[Rollout], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the sampler reported, [N, width] each, NaN elsewhere: (of rows that train under the prompt and policy that sampled them,
    of rows whose ratio is taken against it).

    A row that was sampled under a hint and trains without it, or was sampled long ago, has no log-prob to compare with the trainer's.
    """
    sampled, given = (torch.full((len(rollouts), width), float("nan")) for _ in range(2))
    for n, rollout in enumerate(rollouts):
        values = torch.tensor(rollout.logprobs)
        moved = rollout.guidance is not None and rollout.guidance.train == "plain"
        if rollout.old_from_sampler:
            given[n, : len(values)] = values
        elif not moved:
            sampled[n, : len(values)] = values
    return sampled, given


# ---- what is logged, over all ranks --------------------------------------------------------------------------------


def summed_notes(notes: Mapping[str, int]) -> dict[str, float]:
    """Counts of all ranks."""
    out: dict[str, float] = {}
    for of_rank in dist.gather(dict(notes)):
        for name, number in of_rank.items():
            out[name] = out.get(name, 0.0) + number
    return out


def unaided(groups: Sequence[tuple[int, ScoredGroup]]) -> dict[str, float]:
    """Reward and length of what the policy did without help, where guided rows took the place of some of it; {} elsewhere."""
    helped = any(dist.gather(any(scored.unguided is not None for _, scored in groups)))
    if not helped:
        return {}
    mine = [pair for _, scored in groups for pair in scored.outcomes()]
    everyone = [pair for of_rank in dist.gather(mine) for pair in of_rank]
    values = [value for value, _ in everyone if value is not None]
    lengths = [length for _, length in everyone]
    return {
        "reward": sum(values) / max(1, len(values)),
        "completions/mean_length": sum(lengths) / max(1, len(lengths)),
    }


def share_with_given_row(groups: Sequence[tuple[int, ScoredGroup]]) -> float:
    """Share of the groups of all ranks that hold a row which nobody sampled (ground truth, demonstration); 0 without groups."""
    mine = [any(rollout.provenance == "ground_truth" for rollout in scored.group.rollouts) for _, scored in groups]
    everyone = [given for of_rank in dist.gather(mine) for given in of_rank]
    return sum(everyone) / max(1, len(everyone))


def advantage_moments(adv_N: torch.Tensor, task_N: torch.Tensor, tasks: Sequence[str]) -> dict[str, float]:
    """Skewness and kurtosis (3 for a normal law) of the advantages, of all and, where there are several, of each task's; 0 where they
    are all equal."""
    out: dict[str, float] = {}
    parts = [("", adv_N), *((f"/{task}", adv_N[task_N == k]) for k, task in enumerate(tasks) if len(tasks) > 1)]
    for suffix, values in parts:
        centred = values - values.mean()
        spread = centred.pow(2).mean().sqrt()
        for name, power in (("skewness", 3), ("kurtosis", 4)):
            out[f"advantage/{name}{suffix}"] = float(centred.pow(power).mean() / spread.pow(power)) if spread > 0 else 0.0
    return out


def label_key(samples: Iterable[Sample]) -> str | None:
    """The key of `LABEL_KEYS` with 2 to `MOST_LABELS` values in the rows of a stage; None where there is none."""
    seen: dict[str, set[str]] = {key: set() for key in LABEL_KEYS}
    for sample in samples:
        for key, values in seen.items():
            if len(values) <= MOST_LABELS and (label := label_of(sample, key)) is not None:
                values.add(label)
    return next((key for key, values in seen.items() if 1 < len(values) <= MOST_LABELS), None)


def label_of(sample: Sample, key: str | None) -> str | None:
    """What a row says in that key of its meta, as text."""
    value = None if key is None else sample.meta.get(key)
    return None if value is None else str(value)


def completions(groups: Sequence[tuple[int, ScoredGroup]], key: str | None) -> dict[str, float]:
    """Shares of the on-policy completions of all ranks; of those with a thought also by what rows say in `key`, as
    `completions/think_rate/<label>`."""
    counts: dict[str | None, list[float]] = {None: [0.0] * 5}
    for _, scored in groups:
        label = label_of(scored.group.prompt.sample, key)
        for rollout in scored.group.rollouts:
            if rollout.on_policy:
                parsed = parse(rollout.text, scored.group.prompt.answer_format)
                thought = parsed.thought is not None and bool(parsed.thought.strip())
                flags = (1.0, float(thought), float(rollout.finish == "length"), float(parsed.answer is not None), float(parsed.format_ok))
                for part in {None, label}:
                    counts[part] = [a + b for a, b in zip(counts.get(part, [0.0] * 5), flags, strict=True)]
    everywhere = dist.gather(counts)
    labels = {label for of_rank in everywhere for label in of_rank}
    summed = {label: [sum(v) for v in zip(*(c[label] for c in everywhere if label in c), strict=True)] for label in labels}
    names = ("completions/think_rate", "completions/clipped_ratio", "completions/parse_rate", "completions/format_rate")
    out = {name: value / max(1.0, summed[None][0]) for name, value in zip(names, summed[None][1:], strict=True)}
    return out | {f"{names[0]}/{label}": summed[label][1] / summed[label][0] for label in sorted(labels - {None}, key=str)}


def describe(
    groups: Sequence[tuple[int, ScoredGroup]], table: RewardTable, adv_N: torch.Tensor, *, key: str | None = None
) -> dict[str, float]:
    """Logged statistics over the on-policy rows of all ranks, under TRL's names where TRL has them.

    Args:
        key: what the think rate is told apart by (`label_key`).
    """
    x = table.inputs
    keep = x.on_policy_N & x.valid_N
    out: dict[str, float] = {}
    for k, column in enumerate(x.columns):
        value = x.rewards_NK[keep, k]
        out[f"rewards/{column}/mean"] = float(value[~value.isnan()].mean()) if bool((~value.isnan()).any()) else 0.0
        scored = ~x.rewards_NK[x.on_policy_N, k].isnan()
        out[f"rewards/{column}/judged"] = float(scored.double().mean()) if len(scored) else 0.0
    worth_N, counted_N = table.worth()
    once_N = keep & counted_N
    out["reward"] = float(worth_N[once_N].mean()) if bool(once_N.any()) else 0.0
    spreads = [worth_N[once_N & (x.group_N == g)] for g in x.group_N.unique()]
    spreads = [s for s in spreads if len(s) > 1]
    out["reward_std"] = float(torch.stack([s.std() for s in spreads]).mean()) if spreads else 0.0
    out["frac_reward_zero_std"] = sum(float(s.max() == s.min()) for s in spreads) / max(1, len(spreads))
    differ_N = ~segments.flat(worth_N, x.group_N, x.valid_N) | (adv_N != 0)  # some advantages compare beyond the group
    out["groups_with_signal"] = float(len(x.group_N[differ_N].unique()))
    out["completions/mean_length"] = float(x.length_N[x.on_policy_N].double().mean()) if bool(x.on_policy_N.any()) else 0.0
    out |= unaided(groups)
    out["advantage/offpolicy_mean"] = float(adv_N[~x.on_policy_N].mean()) if bool((~x.on_policy_N).any()) else 0.0
    out |= advantage_moments(adv_N, x.task_N, x.tasks)
    out |= completions(groups, key)
    reasons: dict[str, int] = {}
    for _, scored in groups:
        for reason, n in scored.scores.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + n
    for of_rank in dist.gather(reasons):
        for reason, n in of_rank.items():
            out[f"fault/reward/{reason}"] = out.get(f"fault/reward/{reason}", 0.0) + n
    return out
