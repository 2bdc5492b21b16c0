"""Faithful GRPO: quality terms of the reasoning as constraints with Lagrange multipliers. arXiv:2604.08476, eq. 2-6.

Maximise E[R_task] such that E[R_k] >= tau_k. Per step, with the current multipliers:

    A   = A_task + sum_k lambda_k A_k      each normalised within its group on its own, then A is whitened over the batch
    c_k = sum m_k R_k / sum m_k            over all rollouts to which the constraint applies
    lambda_k <- clip(lambda_k + eta (tau_k - c_k), 0, high), or unchanged if sum m_k < min_applicable

A constraint is a reward column of weight 0; it applies (m_k = 1) where the column judged the rollout, so the reward returns None
where it does not (in the paper: consistency and semantic grounding of wrong answers, boxes of samples without boxes).

Ours, where the paper is silent: rollouts to which a constraint does not apply get A_k = 0 and enter no statistic of it, a group with
fewer than two others has A_k = 0 altogether; whitening is over the judged rollouts of the batch with the sample deviation; without
signal the result is exactly 0. The primal step comes first, the dual step uses the same batch. Rows that were not sampled do not
enter c_k.

The trainer stores the dual, and per step: `adv_N = combine(x, algorithm.advantage(x), dual)`, the update, then
`dual = update(dual, measure(x, list(dual)))`, with x over all ranks, so that every rank has the same multipliers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.constraint.registry import PartialMean, constraint
from vlmrl.algo.inputs import AdvantageInputs

EPSILON = 1e-6


def dual_step(value: float, satisfaction: float, threshold: float, *, eta: float, high: float) -> float:
    """Move a multiplier to clip(value + eta * (threshold - satisfaction), 0, high): it rises where the constraint is violated."""
    return min(max(value + eta * (threshold - satisfaction), 0.0), high)


def measure(x: AdvantageInputs, columns: Sequence[str]) -> dict[str, PartialMean]:
    """Add up each constraint over the sampled rollouts to which it applies.

    Returns:
        Sum and count by column.
    """
    out: dict[str, PartialMean] = {}
    for name in columns:
        reward_N = _column(x, name)
        # rows that were not sampled say nothing about whether the policy keeps the constraint
        applies_N = x.on_policy_N & ~reward_N.isnan()
        out[name] = PartialMean(float(reward_N[applies_N].sum()), int(applies_N.sum()))
    return out


def constraint_advantage(x: AdvantageInputs, column: str) -> Tensor:
    """Compute group z-scores of one column, with the sample deviation, over the rollouts that it judged.

    Returns:
        [N] float64; 0 elsewhere and in flat groups.
    """
    reward_N = _column(x, column)
    applies_N = ~reward_N.isnan()
    live_N = applies_N & ~segments.flat(reward_N, x.group_N, applies_N)
    centred_N = reward_N - segments.mean(reward_N, x.group_N, applies_N)
    score_N = centred_N / (segments.std(reward_N, x.group_N, applies_N, ddof=1) + EPSILON)
    return torch.where(live_N, score_N, torch.zeros_like(score_N))


def combine(x: AdvantageInputs, task_N: Tensor, dual: Mapping[str, float]) -> Tensor:
    """Add the constraints' advantages by their multipliers to the task's [N], and whiten the sum.

    Rollouts that nothing judged get 0 and move nobody. With all multipliers 0 this is the whitened task advantage.

    Returns:
        [N] float64, without gradient.
    """
    total_N = task_N.double()
    # in a fixed order: sums of floats depend on it, and every rank must get the same
    for name in sorted(dual):
        total_N = total_N + dual[name] * constraint_advantage(x, name)
    return whiten(total_N, x.valid_N).detach()


def whiten(adv_N: Tensor, counted_N: Tensor) -> Tensor:
    """Compute (A - mean) / (std + 1e-6) over the counted rows, with the sample deviation.

    Returns:
        [N]; 0 for rows that do not count, and for all where there is no spread.
    """
    everyone_N = torch.zeros_like(counted_N, dtype=torch.int64)
    mean_N = segments.mean(adv_N, everyone_N, counted_N)
    spread_N = segments.std(adv_N, everyone_N, counted_N, ddof=1)
    # group advantages sum to 0; a mean that is only rounding would give groups without signal an advantage
    mean_N = torch.where(mean_N.abs() <= 1e-12 * spread_N, torch.zeros_like(mean_N), mean_N)
    live_N = counted_N & ~segments.flat(adv_N, everyone_N, counted_N)
    return torch.where(live_N, (adv_N - mean_N) / (spread_N + EPSILON), torch.zeros_like(adv_N))


def _column(x: AdvantageInputs, name: str) -> Tensor:
    if name not in x.columns:
        raise ValueError(f"constraint 'lagrangian': no reward column '{name}' (there are: {', '.join(x.columns)}); add it with weight 0")
    return x.rewards_NK[:, x.columns.index(name)]


def _constrains_rewards_of_weight_0(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    thresholds = arguments.get("thresholds")
    weights: dict[str, float] = {reward.key: reward.weight for reward in stage.rewards}
    for column in cast("dict[str, Any]", thresholds) if isinstance(thresholds, dict) else ():
        if column not in weights:
            yield f"constraint 'lagrangian': no reward '{column}' (rewards: {', '.join(weights)}); add it with weight 0"
        elif weights[column] != 0:
            yield (
                f"constraint 'lagrangian': reward '{column}' has weight {weights[column]}; a constraint that is also a reward "
                "counts twice; give it weight 0"
            )


@constraint(
    "lagrangian",
    paper="arXiv:2604.08476",
    acts_on="advantage",
    moves_signs=True,
    measure=measure,
    apply=combine,
    refuses=_constrains_rewards_of_weight_0,
)
def lagrangian(
    dual: Mapping[str, float],
    measured: Mapping[str, PartialMean],
    *,
    thresholds: dict[str, float],
    start: float = 1.0,
    eta: float = 0.05,
    high: float = 5.0,
    min_applicable: int = 8,
) -> dict[str, float]:
    """Move a multiplier per reward column; `thresholds` maps each constrained column to the mean that it must reach.

    Returns:
        Multipliers after the step, by column.

    Raises:
        ValueError: the stored multipliers are of other constraints, or an argument is out of range.
    """
    if not thresholds or eta < 0 or high < 0 or not 0 <= start <= high:
        raise ValueError(f"constraint 'lagrangian': needs thresholds {thresholds}, eta {eta} >= 0 and 0 <= start {start} <= high {high}")
    if dual and set(dual) != set(thresholds):
        raise ValueError(f"constraint 'lagrangian': stored multipliers are of {sorted(dual)}, the recipe constrains {sorted(thresholds)}")
    out: dict[str, float] = {}
    for name in sorted(thresholds):
        value, seen = dual.get(name, start), measured.get(name, PartialMean(0.0, 0))
        # lambda <- clip(lambda + eta (tau - c), 0, high); a mean of a few rollouts is noise and moves nothing
        enough = seen.count >= max(1, min_applicable)
        out[name] = dual_step(value, seen.mean, thresholds[name], eta=eta, high=high) if enough else value
    return out
