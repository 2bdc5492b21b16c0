"""What is logged of a step's rewards, completions and advantages, over all ranks, under TRL's names where TRL has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch

from vlmrl.algo import segments
from vlmrl.algo.attempts import Attempts
from vlmrl.answers.tags import parse
from vlmrl.train import dist
from vlmrl.train.batch import StepBatch
from vlmrl.types import Sample, ScoredGroup

LABEL_KEYS = ("category", "difficulty")
"""Keys of `Sample.meta` that the think rate is told apart by: the first that a stage's rows have."""
MOST_LABELS = 6
"""With more values than that a key tells nothing apart: each would have a curve of its own."""


def summed_notes(notes: Mapping[str, int]) -> dict[str, float]:
    """Add up the counts of all ranks."""
    out: dict[str, float] = {}
    for of_rank in dist.gather(dict(notes)):
        for name, number in of_rank.items():
            out[name] = out.get(name, 0.0) + number
    return out


def unaided(groups: Sequence[tuple[int, ScoredGroup]]) -> dict[str, float]:
    """Average reward and length of what the policy did without help, over all ranks, where guided rows took the place of some of it.

    Returns:
        What replaces `reward` and `completions/mean_length` of the log; {} where nothing was guided.
    """
    helped = any(dist.gather(any(scored.unguided is not None for _, scored in groups)))
    if not helped:
        return {}
    mine = [pair for _, scored in groups for pair in scored.outcomes()]
    everyone = [pair for of_rank in dist.gather(mine) for pair in of_rank]
    values = [value for value, _ in everyone if value is not None]
    lengths = [length for _, length in everyone]
    return {"reward": sum(values) / max(1, len(values)), "completions/mean_length": sum(lengths) / max(1, len(lengths))}


def advantage_moments(adv_N: torch.Tensor, task_N: torch.Tensor, tasks: Sequence[str]) -> dict[str, float]:
    """Compute skewness and kurtosis (3 for a normal law) of the advantages, of all and, where there are several, of each task's; 0 where
    they are all equal.
    """
    out: dict[str, float] = {}
    parts = [("", adv_N), *((f"/{task}", adv_N[task_N == k]) for k, task in enumerate(tasks) if len(tasks) > 1)]
    for suffix, values in parts:
        centred = values - values.mean()
        spread = centred.pow(2).mean().sqrt()
        for name, power in (("skewness", 3), ("kurtosis", 4)):
            out[f"advantage/{name}{suffix}"] = float(centred.pow(power).mean() / spread.pow(power)) if spread > 0 else 0.0
    return out


def label_key(samples: Iterable[Sample]) -> str | None:
    """Find the key of `LABEL_KEYS` with 2 to `MOST_LABELS` values in the rows of a stage; None where there is none."""
    seen: dict[str, set[str]] = {key: set() for key in LABEL_KEYS}
    for sample in samples:
        for key, values in seen.items():
            if len(values) <= MOST_LABELS and (label := label_of(sample, key)) is not None:
                values.add(label)
    return next((key for key, values in seen.items() if 1 < len(values) <= MOST_LABELS), None)


def label_of(sample: Sample, key: str | None) -> str | None:
    """Read what a row says in that key of its meta, as text."""
    value = None if key is None else sample.meta.get(key)
    return None if value is None else str(value)


def completions(groups: Sequence[tuple[int, ScoredGroup]], key: str | None) -> dict[str, float]:
    """Compute shares of the on-policy completions of all ranks; of those with a thought also by what rows say in `key`, as
    `completions/think_rate/<label>`.
    """
    counts: dict[str | None, list[float]] = {None: [0.0] * 5}
    for _, scored in groups:
        label = label_of(scored.group.prompt.sample, key)
        for rollout in scored.group.rollouts:
            if rollout.on_policy:
                parsed = parse(rollout.text, scored.group.prompt.answer_format)
                thought = parsed.thought is not None and bool(parsed.thought.strip())
                flags = (1.0, float(thought), float(rollout.finish == "length"), float(parsed.answer is not None), float(parsed.format_ok))
                for part in {None, label}:  # a set: without a label the row counts once, in the sums of all
                    counts[part] = [a + b for a, b in zip(counts.get(part, [0.0] * 5), flags, strict=True)]
    everywhere = dist.gather(counts)
    labels = {label for of_rank in everywhere for label in of_rank}
    summed = {label: [sum(v) for v in zip(*(c[label] for c in everywhere if label in c), strict=True)] for label in labels}
    names = ("completions/think_rate", "completions/clipped_ratio", "completions/parse_rate", "completions/format_rate")
    out = {name: value / max(1.0, summed[None][0]) for name, value in zip(names, summed[None][1:], strict=True)}
    return out | {f"{names[0]}/{label}": summed[label][1] / summed[label][0] for label in sorted(labels - {None}, key=str)}


def worth(batch: StepBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Say what each row is worth, and which rows statistics count: its reward, and all of them; of turns the sum over the attempt, and
    one turn of each.

    Returns:
        (worth [N] float64, counted [N] bool).
    """
    x = batch.x
    if not batch.turns:
        return x.reward_N, torch.ones_like(x.valid_N)
    assert batch.attempt_N is not None
    attempts = Attempts.of(dataclasses.replace(x, provided={"trajectory_N": batch.attempt_N}), "a step of episodes")
    return attempts.totals(x.reward_N), attempts.first_N


def describe(batch: StepBatch, adv_N: torch.Tensor, *, key: str | None = None) -> dict[str, float]:
    """Compute statistics over the on-policy rows of all ranks.

    Args:
        adv_N: advantages of all rollouts of all ranks.
        key: what the think rate is told apart by (`label_key`).
    """
    x = batch.x
    keep = x.on_policy_N & x.valid_N  # rows that were given, or that nothing judged, say nothing of the policy
    out: dict[str, float] = {}
    for k, column in enumerate(x.columns):
        value = x.rewards_NK[keep, k]
        out[f"rewards/{column}/mean"] = float(value[~value.isnan()].mean()) if bool((~value.isnan()).any()) else 0.0
        scored = ~x.rewards_NK[x.on_policy_N, k].isnan()
        out[f"rewards/{column}/judged"] = float(scored.double().mean()) if len(scored) else 0.0
    worth_N, counted_N = worth(batch)
    once_N = keep & counted_N
    out["reward"] = float(worth_N[once_N].mean()) if bool(once_N.any()) else 0.0
    spreads = [worth_N[once_N & (x.group_N == g)] for g in x.group_N.unique()]
    spreads = [s for s in spreads if len(s) > 1]  # one row has no deviation
    out["reward_std"] = float(torch.stack([s.std() for s in spreads]).mean()) if spreads else 0.0
    out["frac_reward_zero_std"] = sum(float(s.max() == s.min()) for s in spreads) / max(1, len(spreads))
    differ_N = ~segments.flat(worth_N, x.group_N, x.valid_N) | (adv_N != 0)  # some advantages compare beyond the group
    out["groups_with_signal"] = float(len(x.group_N[differ_N].unique()))
    out["completions/mean_length"] = float(x.length_N[x.on_policy_N].double().mean()) if bool(x.on_policy_N.any()) else 0.0
    out |= unaided(batch.groups)
    out["advantage/offpolicy_mean"] = float(adv_N[~x.on_policy_N].mean()) if bool((~x.on_policy_N).any()) else 0.0
    out |= advantage_moments(adv_N, x.task_N, x.tasks)
    out |= completions(batch.groups, key)
    reasons: dict[str, int] = {}
    for _, scored in batch.groups:
        for reason, n in scored.scores.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + n
    for of_rank in dist.gather(reasons):
        for reason, n in of_rank.items():
            out[f"fault/reward/{reason}"] = out.get(f"fault/reward/{reason}", 0.0) + n
    return out
