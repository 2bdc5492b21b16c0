"""Statistics by group id on flat tensors. Values where `valid` is False may be NaN and never enter.

All functions of statistics take x [N], ids [N] (any integers) and valid [N] bool, and return one value per rollout, [N]: that of its group.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

FLAT = 1e-6
"""A group is flat when its range is at most this, relative to its largest magnitude (or to 1)."""


def _compact(ids_N: Tensor) -> tuple[Tensor, int]:
    # torch.unique has no types of its own
    unique, index_N = cast("tuple[Tensor, Tensor]", torch.unique(ids_N, return_inverse=True))  # pyright: ignore[reportUnknownMemberType]
    return index_N, unique.numel()


def _sum(x_N: Tensor, ids_N: Tensor, valid_N: Tensor) -> Tensor:
    index_N, n = _compact(ids_N)
    safe_N = torch.where(valid_N, x_N, torch.zeros_like(x_N))
    # one sum per group [n], then read back at each member [N]
    return torch.zeros(n, dtype=x_N.dtype).index_add(0, index_N, safe_N)[index_N]


def count(ids_N: Tensor, valid_N: Tensor) -> Tensor:
    """Count the valid members of each rollout's group.

    Returns:
        [N] float64.
    """
    return _sum(torch.ones(ids_N.shape, dtype=torch.float64), ids_N, valid_N)


def mean(x_N: Tensor, ids_N: Tensor, valid_N: Tensor) -> Tensor:
    """Average the valid members of each group.

    Returns:
        [N] float64; 0 for a group without valid members.
    """
    return _sum(x_N, ids_N, valid_N) / count(ids_N, valid_N).clamp(min=1)


def std(x_N: Tensor, ids_N: Tensor, valid_N: Tensor, *, ddof: int) -> Tensor:
    """Compute the standard deviation of the valid members of each group, with divisor n - ddof.

    Returns:
        [N] float64; 0 where n <= ddof.
    """
    # two passes, not mean of squares minus square of mean: that loses all digits where rewards are large and close
    centred_N = x_N - mean(x_N, ids_N, valid_N)
    divisor_N = count(ids_N, valid_N) - ddof
    return (_sum(centred_N.square(), ids_N, valid_N) / divisor_N.clamp(min=1)).sqrt() * (divisor_N > 0)


def minimum(x_N: Tensor, ids_N: Tensor, valid_N: Tensor) -> Tensor:
    """Find the smallest valid member of each group.

    Returns:
        [N] in the type of `x_N`; +inf for a group without valid members.
    """
    return -maximum(-x_N, ids_N, valid_N)


def maximum(x_N: Tensor, ids_N: Tensor, valid_N: Tensor) -> Tensor:
    """Find the largest valid member of each group.

    Returns:
        [N] in the type of `x_N`; -inf for a group without valid members.
    """
    index_N, n = _compact(ids_N)
    safe_N = torch.where(valid_N, x_N, torch.full_like(x_N, float("-inf")))
    return torch.full((n,), float("-inf"), dtype=x_N.dtype).scatter_reduce(0, index_N, safe_N, "amax")[index_N]


def flat(x_N: Tensor, ids_N: Tensor, valid_N: Tensor) -> Tensor:
    """Tell whether the group carries no signal: max - min <= 1e-6 * max(1, largest magnitude), or fewer than two valid members.

    The range is tested and not the deviation: rounding leaves a deviation that a division by std + epsilon would blow up.

    Returns:
        [N] bool.
    """
    top_N, bottom_N = maximum(x_N, ids_N, valid_N), minimum(x_N, ids_N, valid_N)
    size_N = torch.maximum(top_N.abs(), bottom_N.abs()).clamp(min=1)
    return (count(ids_N, valid_N) < 2) | (top_N - bottom_N <= FLAT * size_N)
