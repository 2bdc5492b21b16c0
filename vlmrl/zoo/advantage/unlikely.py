"""Rewarding the Unlikely: right answers that the policy found unlikely earn more. arXiv:2506.02355, with the authors' code.

The whole group is ranked by length-normalised log-prob under the policy that sampled it, least likely first (rank 0);
r'_i = r_i * (1 - beta * rank_i / G), then GRPO's z-score of r' with epsilon 1e-6.

Ours: tied log-probs share their mean rank. A group without signal in the raw reward gets exactly 0, as the authors drop such groups
(z-scored, a group of right answers would train on likelihood alone). Rollouts that were not sampled have no rank: they keep their
reward and do not count in G. Only the positive part of a reward is scaled; a negative one stays.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage


def ranks(score_N: Tensor, ids_N: Tensor, valid_N: Tensor) -> Tensor:
    """Place of each valid member in the ascending order of its group, from 0; ties share the mean of theirs. float64 [N]; 0 for others."""
    out_N = torch.zeros(score_N.shape, dtype=torch.float64)
    for one in sorted({int(i) for i in ids_N[valid_N]}):
        member_N = valid_N & (ids_N == one)
        score_n = score_N[member_N]
        below_n = (score_n[None, :] < score_n[:, None]).sum(dim=1).double()
        tied_n = (score_n[None, :] == score_n[:, None]).sum(dim=1).double()
        out_N[member_N] = below_n + (tied_n - 1) / 2
    return out_N


@advantage("unlikely", paper="arXiv:2506.02355", needs=("logp_N",), scale="deviation")
def unlikely(x: AdvantageInputs, *, beta: float = 0.25, epsilon: float = 1e-6, ddof: Literal[0, 1] = 1) -> Tensor:
    """Z-score of the reward after likely answers lost up to `beta` of it."""
    if not 0 <= beta < 1:
        raise ValueError(f"advantage 'unlikely': beta is {beta}, must be in [0, 1) so that right answers stay above wrong ones")
    logp_N = need(x, "logp_N", "advantage 'unlikely'").double() / x.length_N.clamp(min=1)
    ranked_N = x.valid_N & x.on_policy_N & ~logp_N.isnan()
    share_N = ranks(logp_N, x.group_N, ranked_N) / segments.count(x.group_N, ranked_N).clamp(min=1)
    reward_N = x.reward_N - beta * share_N * x.reward_N.clamp(min=0)
    centred_N = reward_N - segments.mean(reward_N, x.group_N, x.valid_N)
    scaled_N = centred_N / (segments.std(reward_N, x.group_N, x.valid_N, ddof=ddof) + epsilon)
    live_N = x.valid_N & ~segments.flat(x.reward_N, x.group_N, x.valid_N) & ~segments.flat(reward_N, x.group_N, x.valid_N)
    return torch.where(live_N, scaled_N, torch.zeros_like(scaled_N)).detach()
