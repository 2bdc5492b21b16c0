"""G2RPO (Gaussian GRPO) of OpenVLThinkerV2: rewards become standard-normal quantiles. arXiv:2604.08539, eq. 5-8, algorithm 1.

Psi of n scores: the r-th smallest (r = 1..n) gets the quantile of (r - 0.5) / n, and tied scores share the mean of theirs; 0 for
n <= 1. The paper's method section ranks a task's rollouts, its appendix a group's; the official code does both in sequence, which
is the default here (`stages="group+task"`).

Ours: groups without signal are removed before the task stage and get exactly 0 (with ties at 0 in the middle of a task's ranking
they would get a preference that nothing supports); with `stages="task"` a group of one is no such group and is ranked. `tie_tol` is
in units of the reward and acts on the first stage. Keys are rounded to 1e-6 before the task stage, so that equal patterns of
different groups tie. Rows that were not sampled (a ground truth) are ranked like all others. Only ranks count: any strictly
increasing shaping of the rewards changes nothing. With small groups the variance is below 1 (0.851 at n = 8 without ties).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage

ROUNDING = 1e-12
"""Rewards closer than this, relative above 1, are the same number computed in another order."""


def psi(score_N: Tensor, *, tie_tol: float = 0.0) -> Tensor:
    """Map one set of finite scores to normal quantiles of their ranks.

    Neighbours in order tie when they are within `tie_tol`, or within rounding (1e-12, relative above 1): 0.1 + 0.2 ties with 0.3.

    Returns:
        [n] float64, for float64 [n]; exactly 0 if all tie.
    """
    n = score_N.numel()
    if n <= 1:
        return torch.zeros_like(score_N)
    # quantile of rank r = 1..n is ndtri((r - 0.5) / n); order_N[r - 1] is the index of the r-th smallest score
    ordered_N, order_N = score_N.sort(stable=True)
    p_N = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    quantile_N = cast("Tensor", torch.special.ndtri(p_N))  # pyright: ignore[reportUnknownMemberType]
    tolerance_N = ROUNDING * torch.maximum(ordered_N[1:].abs(), ordered_N[:-1].abs()).clamp(min=1) + tie_tol
    # number of the block of ties that each ordered score is in: it grows by 1 where the step to the next is above the tolerance
    block_N = torch.cat([torch.zeros(1, dtype=torch.int64), (ordered_N.diff() > tolerance_N).long().cumsum(0)])
    # exactly 0, where the mean of the quantiles would be 0 up to rounding only
    if int(block_N[-1]) == 0:
        return torch.zeros_like(score_N)
    everyone_N = torch.ones(n, dtype=torch.bool)
    shared_N = segments.mean(quantile_N, block_N, everyone_N)
    return torch.empty_like(shared_N).scatter(0, order_N, shared_N)


def _within(score_N: Tensor, ids_N: Tensor, live_N: Tensor, tie_tol: float) -> Tensor:
    out_N = torch.zeros_like(score_N)
    for one in sorted({int(i) for i in ids_N[live_N]}):
        member_N = live_N & (ids_N == one)
        out_N[member_N] = psi(score_N[member_N], tie_tol=tie_tol)
    return out_N


def _moves_signs(arguments: Mapping[str, Any]) -> bool:
    """Ranks over the task: a right answer of a group that is easier than others can get a negative advantage."""
    return arguments["stages"] != "group"


@advantage("g2rpo", paper="arXiv:2604.08539", scale="deviation", ranks_only="sum", moves_signs=_moves_signs)
def g2rpo(x: AdvantageInputs, *, stages: Literal["group+task", "group", "task"] = "group+task", tie_tol: float = 0.0) -> Tensor:
    """Replace rewards by normal quantiles of their ranks within group, then within task.

    Returns:
        [N] float64, without gradient.
    """
    score_N = x.reward_N.double()
    live_N = x.valid_N & ~segments.flat(score_N, x.group_N, x.valid_N)
    if stages == "task":
        # `flat` counts a group of one as flat, but a task can still rank it
        live_N |= x.valid_N & (segments.count(x.group_N, x.valid_N) == 1)
        live_N &= ~segments.flat(score_N, x.task_N, live_N)
    if stages in ("group+task", "group"):
        score_N = _within(score_N, x.group_N, live_N, tie_tol)
        # with `tie_tol` a group that is not flat can still tie altogether: no signal either
        live_N &= segments.maximum(score_N.abs(), x.group_N, live_N) > 0
    if stages == "group+task":
        # quantiles of one rank in groups of one size may differ in their last bits, which would break ties across groups
        score_N = _within((score_N * 1e6).round() / 1e6, x.task_N, live_N, 0.0)
    if stages == "task":
        score_N = _within(score_N, x.task_N, live_N, tie_tol)
    return torch.where(live_N, score_N, torch.zeros_like(score_N)).detach()
