"""GCPO of GeometryZero: an optional action earns something only where it helps. arXiv:2506.07160.

u_i says whether a rollout used the action (an auxiliary construction; a zoom, a tool call); M = +1 where the mean accuracy with it is
above that without by more than epsilon, -1 where it is below by more than that, else 0. The accuracy column gets weight * M * u_i added.

Ours: epsilon 0.1 and weight 0.1 (neither was to be found); the rollouts of one group are split by what they did, where the paper samples
each half under a prompt of its own; with fewer than two judged rollouts on a side M is 0. `used` is a reward column of 0 and 1 (give it
weight 0; 0.5 and more is use). The paper's reward for length is another column.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, with_column
from vlmrl.algo.registries import reward_shaping

USED = 0.5
LEAST = 2


def contrast(accuracy_N: Tensor, used_N: Tensor, group_N: Tensor, judged_N: Tensor, *, epsilon: float) -> Tensor:
    """M of each rollout's group: -1, 0 or 1. float64 [N]"""
    with_N, without_N = judged_N & used_N, judged_N & ~used_N
    gap_N = segments.mean(accuracy_N, group_N, with_N) - segments.mean(accuracy_N, group_N, without_N)
    enough_N = (segments.count(group_N, with_N) >= LEAST) & (segments.count(group_N, without_N) >= LEAST)
    sign_N = (gap_N > epsilon + 1e-9).double() - (gap_N < -epsilon - 1e-9).double()
    return torch.where(enough_N, sign_N, torch.zeros_like(sign_N))


@reward_shaping("gcpo", paper="arXiv:2506.07160")
def gcpo(
    rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, used: str, epsilon: float = 0.1, weight: float = 0.1
) -> Tensor:
    """Add `weight` to rollouts that used the action where it raised the group's accuracy, take it off where it lowered it.

    Raises:
        ValueError: a negative argument.
    """
    if epsilon < 0 or weight < 0:
        raise ValueError(f"reward_shaping 'gcpo': epsilon {epsilon} and weight {weight} must not be negative")
    k, use_N = column_index(x, reward), rewards_NK[:, column_index(x, used)]
    accuracy_N = rewards_NK[:, k].double()
    judged_N = valid_N & ~accuracy_N.isnan() & ~use_N.isnan()
    sign_N = contrast(accuracy_N, use_N >= USED, x.group_N, judged_N, epsilon=epsilon)
    bonus_N = torch.where(judged_N & (use_N >= USED), weight * sign_N, torch.zeros_like(sign_N))
    return with_column(rewards_NK, k, accuracy_N + bonus_N)
