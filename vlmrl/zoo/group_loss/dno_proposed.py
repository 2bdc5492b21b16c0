"""DNO: log-ratios are regressed on how often an answer wins against the policy's own. After arXiv:2404.03715, algorithm 1.

An answer's reward is its win rate against the policy that sampled, r_i = mean over the other answers j of the group of P(i beats j). Over
all pairs of a group, with s the log-ratio of a whole answer to the policy before the step,

    -sigmoid(r_i - r_j) log sigmoid(eta (s_i - s_j)) - sigmoid(r_j - r_i) log sigmoid(-eta (s_i - s_j)),

the mean over the pairs of the step. Unlike DPO's its target is a probability: two answers that win equally often are kept equally likely,
and no pair is pushed apart without end.

Ours: P is 1, 1/2 or 0 by the order of the advantages (the authors ask a model which of two answers is better; let such a reward order
them); `least` leaves out pairs whose win rates differ by less (the authors' filter of large margins, there by a judge's points); their
stronger teacher's answer is a row of the strategy `demonstration`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from vlmrl.algo.registries import group_loss

TIE = 1e-6
"""Advantages closer than this are a draw."""


def win_rates(advantage_N: Tensor, together_NN: Tensor) -> Tensor:
    """Share of its rivals that each answer beats, a draw counting half; 1/2 without a rival. `together_NN`: who meets whom. [N]"""
    gap_NN = advantage_N[:, None] - advantage_N[None, :]
    won_NN = torch.where(gap_NN.abs() <= TIE, torch.full_like(gap_NN, 0.5), (gap_NN > 0).to(gap_NN.dtype))
    rivals_N = together_NN.sum(dim=1)
    won_N = torch.where(together_NN, won_NN, torch.zeros_like(won_NN)).sum(dim=1)
    return torch.where(rivals_N > 0, won_N / rivals_N.clamp(min=1), torch.full_like(won_N, 0.5))


@group_loss("dno_proposed", paper="arXiv:2404.03715", needs=("tokens_N",))
def dno_proposed(
    score_N: Tensor,
    advantage_N: Tensor,
    group_N: Tensor,
    kl_N: Tensor | None = None,
    tokens_N: Tensor | None = None,
    *,
    eta: float = 0.1,
    least: float = 0.0,
    score: Literal["log_ratio_sum", "log_ratio"] = "log_ratio_sum",
) -> Tensor:
    """Mean over pairs of the cross-entropy between who wins more often and whose log-ratio is larger. All vectors [N], of a whole step.

    Raises:
        ValueError: `eta` not above 0, or `least` outside [0, 1].
    """
    if eta <= 0 or not 0 <= least <= 1:
        raise ValueError(f"group_loss 'dno_proposed': needs eta {eta} > 0 and least {least} in [0, 1]")
    live_N = torch.ones_like(advantage_N, dtype=torch.bool) if tokens_N is None else tokens_N > 0
    score_N = torch.where(live_N, score_N, torch.zeros_like(score_N))
    together_NN = (group_N[:, None] == group_N[None, :]) & live_N[:, None] & live_N[None, :]
    together_NN.fill_diagonal_(False)
    rate_N = win_rates(torch.where(live_N, advantage_N, torch.zeros_like(advantage_N)), together_NN).to(score_N.dtype)
    lead_NN = rate_N[:, None] - rate_N[None, :]
    pairs_NN = together_NN & (lead_NN.abs() >= least)
    # every pair stands twice, once from either side: the two sides are the two terms of the cross-entropy
    each_NN = 2 * torch.sigmoid(lead_NN) * softplus(-eta * (score_N[:, None] - score_N[None, :]))
    return torch.where(pairs_NN, each_NN, torch.zeros_like(each_NN)).sum() / pairs_NN.sum().clamp(min=1)
