"""Centre and scale: A_i = phi_g * (r_i - b_i) / (s_i + epsilon), the form that most group-relative methods share.

A method picks the baseline b and the scale s; this file holds the formula and the statistics that `segments` does not have.
Whatever the method, unjudged rollouts and rollouts of a group without signal get exactly 0, and no gradient flows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs


def live(x: AdvantageInputs) -> Tensor:
    """Find the judged rollouts whose group has signal in the summed reward.

    Returns:
        [N] bool.
    """
    return x.valid_N & ~segments.flat(x.reward_N, x.group_N, x.valid_N)


def only(value_N: Tensor, live_N: Tensor) -> Tensor:
    """Keep the values where `live_N`.

    Returns:
        [N], without gradient; exactly 0 elsewhere, whatever stands there.
    """
    # `where` and no product: the reward of an unjudged rollout is NaN, and 0 * NaN is NaN
    return torch.where(live_N, value_N, torch.zeros_like(value_N)).detach()


def centre_scale(
    x: AdvantageInputs,
    *,
    baseline_N: Tensor | None = None,
    scale_N: Tensor | None = None,
    phi_N: Tensor | None = None,
    epsilon: float = 0.0,
) -> Tensor:
    """Compute phi * (r - b) / (s + epsilon) where the group has signal.

    Without `baseline_N` the group mean, without `scale_N` no division, without `phi_N` 1. Each holds one value per rollout.

    Returns:
        [N] float64, without gradient; 0 elsewhere.
    """
    centred_N = x.reward_N - (segments.mean(x.reward_N, x.group_N, x.valid_N) if baseline_N is None else baseline_N)
    if scale_N is not None:
        centred_N = centred_N / (scale_N + epsilon)
    return only(centred_N if phi_N is None else phi_N * centred_N, live(x))


def batch_std(value_N: Tensor, counted_N: Tensor, *, ddof: int) -> Tensor:
    """Compute the standard deviation of the counted values of the whole batch.

    Returns:
        [N] float64, the same number for every rollout.
    """
    # one group id for all: the batch is one group
    return segments.std(value_N, torch.zeros_like(counted_N, dtype=torch.int64), counted_N, ddof=ddof)


def weighted_moments(value_N: Tensor, weight_N: Tensor, counted_N: Tensor, *, ddof: int) -> tuple[Tensor, Tensor]:
    """Compute mean and variance (divisor: sum of weights - ddof) of the counted values.

    With `weight_N` the lengths it is what whitening over all tokens of the batch uses when a rollout's tokens share one value.

    Returns:
        (mean, variance), float64 scalars; both 0 where nothing counts.
    """
    weight_N = torch.where(counted_N, weight_N.double(), torch.zeros_like(weight_N, dtype=torch.float64))
    safe_N = torch.where(counted_N, value_N, torch.zeros_like(value_N))
    total = weight_N.sum()
    # mean = sum(w x) / sum(w), variance = sum(w (x - mean)^2) / (sum(w) - ddof)
    mean = (weight_N * safe_N).sum() / total.clamp(min=1)
    square = (weight_N * (safe_N - mean).square()).sum()
    return mean, square / (total - ddof).clamp(min=1) * (total > ddof)


def median(value_N: Tensor, ids_N: Tensor, counted_N: Tensor) -> Tensor:
    """Find the lower median of the counted members of each rollout's group.

    Returns:
        [N] in the type of `value_N`; 0 for a group without any.
    """
    out_N = torch.zeros_like(value_N)
    for one in sorted({int(i) for i in ids_N[counted_N]}):
        member_N = ids_N == one
        # torch's median is the lower of the two middle values where their number is even
        out_N[member_N] = value_N[member_N & counted_N].median()
    return out_N
