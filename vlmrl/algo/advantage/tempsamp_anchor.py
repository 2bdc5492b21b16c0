"""TempSamp-R1's advantage anchoring, one of its three repairs of a group with a ground-truth row. arXiv:2509.18056, eq. 3.

On-policy rows: GRPO's z-score over the on-policy rows alone, as if the other rows were not there. Rows that the policy did not sample:
`scale` times the largest on-policy advantage of their group, 1.2 in the paper.

A group whose on-policy rewards are all equal has advantages of 0, so its ground-truth row gets 0 as well: no signal exactly where it is
needed most. `floor` is ours: the least advantage of such a row in a group with judged on-policy rows; 0 is the paper's method.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


def anchored(adv_N: Tensor, group_N: Tensor, own_N: Tensor, other_N: Tensor, *, scale: float, floor: float) -> Tensor:
    """Put rows of others at `scale` times the group's largest own advantage, at least `floor`; leave own rows as they are.

    A group without own rows has no anchor: its others get 0.

    Returns:
        [N]; 0 for rows that are neither `own_N` nor `other_N`.
    """
    top_N = segments.maximum(adv_N, group_N, own_N)
    # `maximum` gives -inf for a group without own rows
    anchor_N = torch.where(top_N.isfinite(), (scale * top_N).clamp(min=floor), torch.zeros_like(adv_N))
    return torch.where(own_N, adv_N, torch.where(other_N, anchor_N, torch.zeros_like(adv_N)))


@advantage("tempsamp_anchor", paper="arXiv:2509.18056", needs_injected_rows=True, alternative="TempSamp-R1's repairs")
def tempsamp_anchor(
    x: AdvantageInputs, *, scale: float = 1.2, floor: float = 0.0, epsilon: float = 1e-4, ddof: Literal[0, 1] = 1
) -> Tensor:
    """Take GRPO's advantage among the sampled rows, and put the others at `scale` times the best of them.

    Returns:
        [N] float64, without gradient.

    Raises:
        ValueError: `scale` or `floor` is negative.
    """
    if scale < 0 or floor < 0:
        raise ValueError(f"advantage 'tempsamp_anchor': scale {scale} and floor {floor} must not be negative")
    own_N = x.valid_N & x.on_policy_N
    adv_N = grpo(dataclasses.replace(x, valid_N=own_N), epsilon=epsilon, ddof=ddof)
    return anchored(adv_N, x.group_N, own_N, x.valid_N & ~x.on_policy_N, scale=scale, floor=floor)
