"""Levels: over which tokens a log-ratio is pooled before it becomes a ratio. The first axis of the ratio losses.

All functions ignore what is outside the mask, in value and in gradient. Ours: the log-ratio of a token is clamped to +-20.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from vlmrl.algo.inputs import LossInputs

MAX_LOG_RATIO = 20.0


def inside(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The values on the mask and 0 elsewhere, so that NaN outside reaches neither value nor gradient. [B, T]"""
    return torch.where(mask_BT, value_BT, torch.zeros_like(value_BT))


def log_ratio(x: LossInputs) -> Tensor:
    """logp - logp_old, within +-20 and with gradient there; 0 outside the mask. [B, T]"""
    gap_BT = inside(x.logp_BT, x.mask_BT) - inside(x.logp_old_BT, x.mask_BT)
    return gap_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def token_ratio(x: LossInputs) -> Tensor:
    """exp(log-ratio) of each token; 1 outside the mask. [B, T]"""
    return log_ratio(x).exp()


def row_sum(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum over the masked tokens of each row. [B]"""
    return inside(value_BT, mask_BT).sum(dim=1)


def row_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the masked tokens of each row; 0 for a row without any. [B]"""
    return row_sum(value_BT, mask_BT) / mask_BT.sum(dim=1).clamp(min=1)


def straight_through(pooled_B: Tensor, x: LossInputs) -> Tensor:
    """The pooled number of its row for every token, with the gradient of the token's own log-prob: sg[pooled] + logp - sg[logp]. [B, T]

    The form of GSPO-token (arXiv:2507.18071, eq. 14), which allows an advantage per token. With one advantage per row and a reducer
    that divides by the row's tokens, the gradient is that of the row's mean log-prob.
    """
    logp_BT = inside(x.logp_BT, x.mask_BT)
    return pooled_B.detach()[:, None] + (logp_BT - logp_BT.detach())


def sequence_ratio(x: LossInputs) -> Tensor:
    """exp(mean of the row's log-ratios) for every token, straight through; differs from 1 on the mask only. [B, T]"""
    log_BT = straight_through(row_mean(log_ratio(x), x.mask_BT), x)
    return inside(log_BT, x.mask_BT).exp()


def mean_logp(x: LossInputs) -> Tensor:
    """Mean log-prob of the row's tokens. [B]"""
    return row_mean(x.logp_BT, x.mask_BT)


def mean_ratio(x: LossInputs) -> Tensor:
    """Mean ratio of the row's tokens, not clipped. [B]"""
    return row_mean(token_ratio(x), x.mask_BT)


def mean_log_ratio(x: LossInputs) -> Tensor:
    """Mean log-ratio of the row's tokens. [B]"""
    return row_mean(log_ratio(x), x.mask_BT)


def sum_log_ratio(x: LossInputs) -> Tensor:
    """Log-ratio of the whole row, within +-20. [B]"""
    return row_sum(log_ratio(x), x.mask_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


SCORES: Mapping[str, Callable[[LossInputs], Tensor]] = {
    "logL": mean_logp,
    "ratio": mean_ratio,
    "log_ratio": mean_log_ratio,
    "log_ratio_sum": sum_log_ratio,
}
"""Row scores [B] by name: what group losses compare, and what `LossInputs.score_mean_B` is the mean of."""
