"""GS-GDPO: G2RPO per reward column. The component-wise variant in the official code of OpenVLThinkerV2, arXiv:2604.08539.

S_i = sum_k w_k Psi(column k within the group), then Psi of S over the rollouts of the task. Psi maps scores to the standard-normal
quantiles of their ranks (see `g2rpo`). The columns of the code are correctness, format and structure, summed without weights.

Ours: the columns are those of the run, with its weights. A column that did not judge a rollout does not rank it and adds 0; a column
that is flat in a group adds 0. Groups whose S is flat are removed before the task stage and get exactly 0. `tie_tol` is in units of
the rewards and acts on the first stage. Sums that differ by rounding only tie in the task stage (see `psi`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage import centre
from vlmrl.algo.advantage.g2rpo import psi
from vlmrl.algo.advantage.gdpo import weights
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


def psi_within(score_N: Tensor, ids_N: Tensor, counted_N: Tensor, *, tie_tol: float = 0.0) -> Tensor:
    """`psi` of the counted members of each id on their own, float64 [N]; 0 for the others."""
    out_N = torch.zeros(score_N.shape, dtype=torch.float64)
    for one in sorted({int(i) for i in ids_N[counted_N]}):
        member_N = counted_N & (ids_N == one)
        out_N[member_N] = psi(score_N[member_N], tie_tol=tie_tol)
    return out_N


@advantage("gs_gdpo", paper="arXiv:2604.08539", needs=("weights_K",), scale="deviation", ranks_only=True, moves_signs=True)
def gs_gdpo(x: AdvantageInputs, *, tie_tol: float = 0.0) -> Tensor:
    """Normal quantiles per column within the group, summed, then normal quantiles within the task."""
    sum_N = torch.zeros(x.valid_N.shape, dtype=torch.float64)
    for column_N, weight in zip(x.rewards_NK.double().unbind(dim=1), weights(x, "gs_gdpo"), strict=True):
        judged_N = x.valid_N & ~column_N.isnan()
        judged_N &= ~segments.flat(column_N, x.group_N, judged_N)
        sum_N = sum_N + weight * psi_within(column_N, x.group_N, judged_N, tie_tol=tie_tol)
    live_N = x.valid_N & ~segments.flat(sum_N, x.group_N, x.valid_N)
    return centre.only(psi_within(sum_N, x.task_N, live_N), live_N)
