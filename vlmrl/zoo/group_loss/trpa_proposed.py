"""TRPA: a preference loss over all pairs of answers that rules can order, within a trust region. After arXiv:2504.04524.

Per question and pair of a better and a worse answer: -log sigmoid(beta k (D_better - D_worse)) with D the mean log-ratio of an answer's
tokens, k = 2.5 if the better one is right, else 1; the mean over all pairs of the step, plus 0.001 of the divergence from the old policy.

Ours: the order is that of the advantages, and right is an advantage above 0 (the authors sort answers into four levels by rules); D is
relative to the policy before the step, where the authors have the frozen starting weights, which a loss of this slot is not given, so that
all pairs pull alike in the first update; the divergence is the low-variance estimate of KL(old || policy); without a pair the first term
is 0 (the authors have a fallback by level).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo.registries import group_loss

TIE = 1e-6
"""Advantages closer than this are one level."""


@group_loss("trpa_proposed", paper="arXiv:2504.04524", needs=("kl_N", "tokens_N"))
def trpa_proposed(
    score_N: Tensor,
    advantage_N: Tensor,
    group_N: Tensor,
    kl_N: Tensor | None = None,
    tokens_N: Tensor | None = None,
    *,
    beta: float = 0.1,
    right: float = 2.5,
    kl: float = 0.001,
    score: Literal["log_ratio"] = "log_ratio",
    divergence: Literal["low_variance", "kl"] = "low_variance",
) -> Tensor:
    """Mean over pairs of the preference loss, plus `kl` times the mean divergence of a token. All vectors [N], of a whole step.

    Raises:
        ValueError: a negative argument, or a divergence without `kl_N` and `tokens_N`.
    """
    if beta <= 0 or right <= 0 or kl < 0:
        raise ValueError(f"group_loss 'trpa_proposed': needs beta {beta} > 0, right {right} > 0 and kl {kl} >= 0")
    live_N = torch.ones_like(advantage_N, dtype=torch.bool) if tokens_N is None else tokens_N > 0
    score_N = torch.where(live_N, score_N, torch.zeros_like(score_N))
    better_NN = (group_N[:, None] == group_N[None, :]) & (advantage_N[:, None] > advantage_N[None, :] + TIE)
    better_NN &= live_N[:, None] & live_N[None, :]
    strength_N = torch.where(advantage_N > 0, right, 1.0).to(score_N.dtype) * beta
    each_NN = torch.nn.functional.softplus(-strength_N[:, None] * (score_N[:, None] - score_N[None, :]))
    loss = torch.where(better_NN, each_NN, torch.zeros_like(each_NN)).sum() / better_NN.sum().clamp(min=1)
    if kl == 0:
        return loss
    if kl_N is None or tokens_N is None:
        raise ValueError("group_loss 'trpa_proposed': the divergence needs kl_N and tokens_N; give both, or set kl to 0")
    return loss + kl * torch.where(live_N, kl_N, torch.zeros_like(kl_N)).sum() / tokens_N.sum().clamp(min=1)
