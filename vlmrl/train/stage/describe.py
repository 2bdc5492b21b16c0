"""What is logged of a step's rollouts, over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from vlmrl.answers.tags import parse
from vlmrl.train import dist
from vlmrl.train.stage.table import RewardTable
from vlmrl.types import ScoredGroup


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


def describe(groups: Sequence[tuple[int, ScoredGroup]], table: RewardTable, adv_N: torch.Tensor) -> dict[str, float]:
    """Logged statistics over the on-policy rows of all ranks, under TRL's names where TRL has them."""
    x = table.inputs
    keep = x.on_policy_N & x.valid_N
    out: dict[str, float] = {}
    for k, column in enumerate(x.columns):
        value = x.rewards_NK[keep, k]
        out[f"rewards/{column}/mean"] = float(value[~value.isnan()].mean()) if bool((~value.isnan()).any()) else 0.0
    out["reward"] = float(x.reward_N[keep].mean()) if bool(keep.any()) else 0.0
    spreads = [x.reward_N[keep & (x.group_N == g)] for g in x.group_N.unique()]
    spreads = [s for s in spreads if len(s) > 1]
    out["reward_std"] = float(torch.stack([s.std() for s in spreads]).mean()) if spreads else 0.0
    out["frac_reward_zero_std"] = sum(float(s.max() == s.min()) for s in spreads) / max(1, len(spreads))
    out["completions/mean_length"] = float(x.length_N[x.on_policy_N].double().mean()) if bool(x.on_policy_N.any()) else 0.0
    out |= unaided(groups)
    out["advantage/offpolicy_mean"] = float(adv_N[~x.on_policy_N].mean()) if bool((~x.on_policy_N).any()) else 0.0
    out |= advantage_moments(adv_N, x.task_N, x.tasks)
    counts = [0.0] * 5
    reasons: dict[str, int] = {}
    for _, scored in groups:
        for rollout in scored.group.rollouts:
            if rollout.on_policy:
                parsed = parse(rollout.text, scored.group.prompt.answer_format)
                thought = parsed.thought is not None and bool(parsed.thought.strip())
                flags = (1.0, float(thought), float(rollout.finish == "length"), float(parsed.answer is not None), float(parsed.format_ok))
                counts = [a + b for a, b in zip(counts, flags, strict=True)]
        for reason, n in scored.scores.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + n
    summed = [sum(values) for values in zip(*dist.gather(counts), strict=True)]
    names = ("completions/think_rate", "completions/clipped_ratio", "completions/parse_rate", "completions/format_rate")
    out |= {name: value / max(1.0, summed[0]) for name, value in zip(names, summed[1:], strict=True)}
    for of_rank in dist.gather(reasons):
        for reason, n in of_rank.items():
            out[f"fault/reward/{reason}"] = out.get(f"fault/reward/{reason}", 0.0) + n
    return out
