"""Structural entropy ranking of R^3: an order among the rollouts of a group in which all fail. arXiv:2601.19620.

peak_i: mean of the largest max(1, floor(p L)) token entropies of a rollout; glob_i: mean of all. i dominates j if peak_i > peak_j and
glob_i < glob_j: unsure at few places and sure elsewhere. By the number of others that it dominates the k-th of N (from 0) gets
`best` * (1 - k / (N - 1)) added. Ours: p 0.1 and best 0.1 (not to be found; below a real success); rollouts that dominate as many
share the mean of their places, where a sort would invent an order; failed is an accuracy of 0.5 and less for all judged rollouts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping

RIGHT = 0.5


def standing(peak_n: Tensor, glob_n: Tensor) -> Tensor:
    """1 - k / (n - 1) with k the place by dominated others, ties sharing their mean place; 0 for a single one. [n]"""
    n = len(peak_n)
    if n < 2:
        return torch.zeros(n, dtype=torch.float64)
    dominated_n = ((peak_n[:, None] > peak_n[None, :]) & (glob_n[:, None] < glob_n[None, :])).sum(dim=1)
    above_n = (dominated_n[None, :] > dominated_n[:, None]).sum(dim=1)
    same_n = (dominated_n[None, :] == dominated_n[:, None]).sum(dim=1)
    return 1 - (above_n + (same_n - 1) / 2).double() / (n - 1)


@reward_shaping("serr", paper="arXiv:2601.19620", needs=("entropy_NT",))
def serr(rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, peak: float = 0.1, best: float = 0.1) -> Tensor:
    """Add up to `best` to the rollouts of a group in which all fail, by the structure of their entropies.

    Raises:
        ValueError: a share outside (0, 1], a negative reward, or no entropies.
    """
    if not 0 < peak <= 1 or best < 0:
        raise ValueError(f"reward_shaping 'serr': needs peak {peak} in (0, 1] and best {best} >= 0")
    k = column_index(x, reward)
    entropy_NT = need(x, "entropy_NT", "reward_shaping 'serr'").double()
    accuracy_N = rewards_NK[:, k].double()
    judged_N = valid_N & ~accuracy_N.isnan() & (x.length_N > 0)
    failed_N = segments.maximum(accuracy_N, x.group_N, judged_N) <= RIGHT
    bonus_N = torch.zeros_like(accuracy_N)
    for one in sorted({int(i) for i in x.group_N[judged_N & failed_N]}):
        places = (judged_N & (x.group_N == one)).nonzero()[:, 0]
        tokens = [entropy_NT[int(n), : int(x.length_N[int(n)])] for n in places]
        peaks = torch.stack([row.topk(max(1, int(peak * len(row)))).values.mean() for row in tokens])
        bonus_N[places] = best * standing(peaks, torch.stack([row.mean() for row in tokens]))
    return with_column(rewards_NK, k, accuracy_N + bonus_N)
