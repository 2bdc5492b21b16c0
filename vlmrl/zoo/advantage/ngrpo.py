"""NGRPO: a virtual rollout of maximum reward joins the group's statistics. arXiv:2509.18851, section 3.1, with the authors' code.

A_i = (r_i - mean') / (std' + epsilon), mean' and the sample deviation std' over the group and `virtual` copies of `r_max`. A group
where all fail gets negative advantages (-1 / sqrt(G + 1) for rewards 0, r_max 1, one copy), one where all reach `r_max` gets 0.
Defaults as in the code: one copy of reward 1, epsilon 1e-6. The method's other half is a tighter clip below than above (0.16, 0.24).

`r_max` must be the largest summed reward that a rollout can reach, not the largest that was seen: with weights or several columns set it.
Do not combine with a selection that drops all-wrong groups. Ours: a group of one gets 0 (the virtual rollout would make it -0.7);
unjudged rollouts get 0 and enter no statistic; a group that is at `r_max` up to rounding gets exactly 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage import centre
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("ngrpo", paper="arXiv:2509.18851", baseline="virtual", scale="deviation", bound="r_max", uses_flat_groups=True)
def ngrpo(x: AdvantageInputs, *, r_max: float = 1.0, virtual: int = 1, epsilon: float = 1e-6, ddof: Literal[0, 1] = 1) -> Tensor:
    """Z-score within the group and a virtual rollout of maximum reward.

    Raises:
        ValueError: a reward above `r_max`, or a negative number of copies.
    """
    if virtual < 0:
        raise ValueError(f"advantage 'ngrpo': virtual is {virtual}, the number of virtual rollouts; must not be negative")
    above_N = x.valid_N & (x.reward_N > r_max + segments.FLAT * max(1.0, abs(r_max)))
    if bool(above_N.any()):
        row = int(above_N.nonzero()[0, 0])
        raise ValueError(
            f"advantage 'ngrpo': rollout {row} of group {int(x.group_N[row])} has reward {float(x.reward_N[row]):g}, above r_max "
            f"{r_max:g}; set r_max to the largest weighted sum of rewards that a rollout can reach"
        )
    n = len(x.reward_N)
    groups = sorted({int(i) for i in x.group_N}) * virtual
    reward_M = torch.cat([x.reward_N, torch.full((len(groups),), r_max, dtype=x.reward_N.dtype)])
    ids_M = torch.cat([x.group_N, torch.tensor(groups, dtype=x.group_N.dtype)])
    valid_M = torch.cat([x.valid_N, torch.ones(len(groups), dtype=torch.bool)])
    mean_N = segments.mean(reward_M, ids_M, valid_M)[:n]
    std_N = segments.std(reward_M, ids_M, valid_M, ddof=ddof)[:n]
    live_N = x.valid_N & (segments.count(x.group_N, x.valid_N) > 1) & ~segments.flat(reward_M, ids_M, valid_M)[:n]
    return centre.only((x.reward_N - mean_N) / (std_N + epsilon), live_N)
