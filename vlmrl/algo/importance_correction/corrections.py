"""Corrections for a sampler whose log-probs differ from the trainer's: one weight per token for the policy term.

rho' = exp(logp_old - logp_sampled): old policy as the trainer computes it over what the engine reported. As in the TRL
and verl libraries (truncated and masked importance sampling). Token weights are biased but bounded; a weight of the whole answer is
unbiased but grows with length: a mean gap of 0.001 over 2000 tokens is a factor 7.4, although every token is nearly perfect.

Everywhere: tokens whose sampled log-prob is NaN were not sampled; they and all tokens outside the mask get weight 1 and enter no sum.
Weights carry no gradient. Metrics are (sum, count) over sampled tokens. Ours: log-ratios, and their sum over an answer, are clamped
to +-20.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo.registries import importance_correction

MAX_LOG_RATIO = 20.0
Metrics = dict[str, tuple[Tensor, Tensor]]


def _log_ratio(logp_old_BT: Tensor, logp_sampled_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """(log rho', 0 where unknown; tokens where it is known). [B, T] each"""
    known_BT = mask_BT & ~logp_sampled_BT.isnan()
    zero_BT = torch.zeros_like(logp_old_BT)
    # each side is cleared before the difference: NaN outside the mask must not reach it
    gap_BT = torch.where(known_BT, logp_old_BT, zero_BT) - torch.where(known_BT, logp_sampled_BT.to(logp_old_BT), zero_BT)
    return gap_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), known_BT


def _whole(log_BT: Tensor) -> Tensor:
    """exp of the row's sum, for every token of the row. [B, T]"""
    # prod_t rho'_t = exp(sum_t log rho'_t), [B, 1] spread to [B, T]; unknown tokens add 0
    return log_BT.sum(dim=1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().expand_as(log_BT)


def _result(weight_BT: Tensor, touched_BT: Tensor, known_BT: Tensor) -> tuple[Tensor, Metrics]:
    weight_BT = torch.where(known_BT, weight_BT, torch.ones_like(weight_BT)).detach()
    count = known_BT.sum()
    mean = torch.where(known_BT, weight_BT, torch.zeros_like(weight_BT)).sum()
    return weight_BT, {
        "importance_correction/weight": (mean, count),
        "importance_correction/changed": ((touched_BT & known_BT).sum(), count),
        "importance_correction/masked": (((weight_BT == 0) & known_BT).sum(), count),
    }


def _truncated(ratio_BT: Tensor, known_BT: Tensor, low: float, high: float) -> tuple[Tensor, Metrics]:
    return _result(ratio_BT.clamp(low, high), (ratio_BT < low) | (ratio_BT > high), known_BT)


def _masked(ratio_BT: Tensor, known_BT: Tensor, low: float, high: float) -> tuple[Tensor, Metrics]:
    outside_BT = (ratio_BT < low) | (ratio_BT > high)
    return _result(torch.where(outside_BT, torch.zeros_like(ratio_BT), ratio_BT), outside_BT, known_BT)


def _check(name: str, low: float, high: float) -> None:
    if not 0 <= low <= 1 <= high:
        raise ValueError(f"importance_correction '{name}': the bounds are {low} and {high}; they must satisfy 0 <= lower <= 1 <= upper")


@importance_correction("none")
def none(logp_old_BT: Tensor, logp_sampled_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Metrics]:
    """Weigh every token by 1.

    Returns:
        (weight [B, T], no metrics).
    """
    return torch.ones_like(logp_old_BT).detach(), {}


@importance_correction("tis", paper="verl, truncated importance sampling")
def tis(
    logp_old_BT: Tensor, logp_sampled_BT: Tensor, mask_BT: Tensor, *, ratio_min: float = 0.0, ratio_max: float = 2.0
) -> tuple[Tensor, Metrics]:
    """Weigh each token by its own ratio, clipped to [ratio_min, ratio_max].

    Returns:
        (weight [B, T], metrics).

    Raises:
        ValueError: not 0 <= ratio_min <= 1 <= ratio_max.
    """
    _check("tis", ratio_min, ratio_max)
    log_BT, known_BT = _log_ratio(logp_old_BT, logp_sampled_BT, mask_BT)
    return _truncated(log_BT.exp(), known_BT, ratio_min, ratio_max)


@importance_correction("sequence", paper="verl, truncated importance sampling")
def sequence(
    logp_old_BT: Tensor, logp_sampled_BT: Tensor, mask_BT: Tensor, *, ratio_min: float = 0.0, ratio_max: float = 3.0
) -> tuple[Tensor, Metrics]:
    """Weigh every token by the ratio of its whole answer, clipped to [ratio_min, ratio_max]. Explodes with length; see the module.

    Returns:
        (weight [B, T], metrics).

    Raises:
        ValueError: not 0 <= ratio_min <= 1 <= ratio_max.
    """
    _check("sequence", ratio_min, ratio_max)
    log_BT, known_BT = _log_ratio(logp_old_BT, logp_sampled_BT, mask_BT)
    return _truncated(_whole(log_BT), known_BT, ratio_min, ratio_max)


@importance_correction("mis", paper="TRL, masked importance sampling")
def mis(
    logp_old_BT: Tensor,
    logp_sampled_BT: Tensor,
    mask_BT: Tensor,
    *,
    level: Literal["sequence", "token"] = "sequence",
    ratio_min: float = 0.0,
    ratio_max: float = 3.0,
) -> tuple[Tensor, Metrics]:
    """Weigh by the ratio where it lies within the bounds, else by 0: what is too far off is dropped, not cut. Defaults as in TRL.

    Returns:
        (weight [B, T], metrics).

    Raises:
        ValueError: not 0 <= ratio_min <= 1 <= ratio_max.
    """
    _check("mis", ratio_min, ratio_max)
    log_BT, known_BT = _log_ratio(logp_old_BT, logp_sampled_BT, mask_BT)
    return _masked(_whole(log_BT) if level == "sequence" else log_BT.exp(), known_BT, ratio_min, ratio_max)


@importance_correction("icepop", paper="Ring-1T report, IcePop")
def icepop(
    logp_old_BT: Tensor, logp_sampled_BT: Tensor, mask_BT: Tensor, *, alpha: float = 0.5, beta: float = 2.0
) -> tuple[Tensor, Metrics]:
    """Weigh each token by its ratio within [alpha, beta], else by 0: masked importance sampling at token level. The bounds are our choice.

    Returns:
        (weight [B, T], metrics).

    Raises:
        ValueError: not 0 <= alpha <= 1 <= beta.
    """
    _check("icepop", alpha, beta)
    log_BT, known_BT = _log_ratio(logp_old_BT, logp_sampled_BT, mask_BT)
    return _masked(log_BT.exp(), known_BT, alpha, beta)
