"""What the losses that tell right from wrong answers of a question share: sums by group, log-mean-exp, and the trust region."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor


class Sides(NamedTuple):
    """Right and wrong answers by group."""

    index_N: Tensor
    """Number of each row's group, in [0, groups)."""
    groups: int
    right_N: Tensor
    wrong_N: Tensor
    rights: Tensor
    """Right answers of each group, [groups]."""
    wrongs: Tensor
    both: Tensor
    """Groups with a right and a wrong answer, bool [groups]."""


def sides(score_N: Tensor, advantage_N: Tensor, group_N: Tensor, tokens_N: Tensor | None) -> Sides:
    """Labels from the signs of advantages (0: unjudged, ignored); rows without tokens enter nothing."""
    # torch.unique has no types of its own
    unique, index_N = cast("tuple[Tensor, Tensor]", torch.unique(group_N, return_inverse=True))  # pyright: ignore[reportUnknownMemberType]
    live_N = torch.ones_like(advantage_N, dtype=torch.bool) if tokens_N is None else tokens_N > 0
    right_N, wrong_N = live_N & (advantage_N > 0), live_N & (advantage_N < 0)
    rights, wrongs = (group_sum(of_N.to(score_N.dtype), index_N, unique.numel()) for of_N in (right_N, wrong_N))
    return Sides(index_N, unique.numel(), right_N, wrong_N, rights, wrongs, (rights > 0) & (wrongs > 0))


def group_sum(value_N: Tensor, index_N: Tensor, groups: int) -> Tensor:
    """Sum by group. [groups]"""
    return torch.zeros(groups, dtype=value_N.dtype, device=value_N.device).index_add(0, index_N, value_N)


def log_mean_exp(value_N: Tensor, of_N: Tensor, index_N: Tensor, groups: int) -> Tensor:
    """log mean exp over the members `of_N` of each group; 0 for a group without any. [groups]"""
    low = torch.full((groups,), float("-inf"), dtype=value_N.dtype, device=value_N.device)
    top = low.scatter_reduce(0, index_N[of_N], value_N.detach()[of_N], "amax")
    top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    shifted_N = torch.where(of_N, value_N - top[index_N], torch.zeros_like(value_N)).exp() * of_N
    count = group_sum(of_N.to(value_N.dtype), index_N, groups)
    total = torch.where(count > 0, group_sum(shifted_N, index_N, groups), torch.ones_like(count))
    return total.log() - count.clamp(min=1).log() + top


def penalty(method: str, kl_N: Tensor | None, tokens_N: Tensor | None, beta: float, delta: float) -> Tensor | None:
    """(beta / 2) * max(KL - delta, 0)^2, KL the mean over all tokens; None with beta 0.

    Raises:
        ValueError: a constraint without `kl_N` and `tokens_N`.
    """
    if beta == 0:
        return None
    if kl_N is None or tokens_N is None:
        raise ValueError(f"group_loss '{method}': the constraint needs kl_N and tokens_N; give both, or set beta to 0")
    divergence = torch.where(tokens_N > 0, kl_N, torch.zeros_like(kl_N)).sum() / tokens_N.sum().clamp(min=1)
    return beta / 2 * (divergence - delta).clamp(min=0).square()
