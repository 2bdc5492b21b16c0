"""The three axes of the policy losses: over which tokens a log-ratio is pooled (levels), how a ratio and an advantage become a token loss
(gates), and how a matrix of token losses becomes a number (reducers).

All functions ignore what is outside the mask, in value and in gradient. Ours: the log-ratio of a token is clamped to +-20.

A reducer gives weights and a count; the loss of a step is sum(loss * weight) / sum(count), both over all its micro-batches and ranks, so
any split gives the same gradient. Numerator and denominator come from the same mask; rows with an empty mask count nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo.inputs import LossInputs, Reduction
from vlmrl.algo.registries import reducer

MAX_LOG_RATIO = 20.0


def inside(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Put 0 where the mask is False, so that NaN there reaches neither value nor gradient.

    Returns:
        [B, T]
    """
    return torch.where(mask_BT, value_BT, torch.zeros_like(value_BT))


def log_ratio(x: LossInputs) -> Tensor:
    """Subtract logp_old from logp, token by token.

    Returns:
        [B, T], in nats, within +-20 and with gradient there; 0 outside the mask.
    """
    # masked first: what stands outside, NaN included, then reaches no value and no gradient
    gap_BT = inside(x.logp_BT, x.mask_BT) - inside(x.logp_old_BT, x.mask_BT)
    return gap_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def token_ratio(x: LossInputs) -> Tensor:
    """Compute exp(log-ratio) of each token.

    Returns:
        [B, T]; 1 outside the mask.
    """
    return log_ratio(x).exp()


def row_sum(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum over the masked tokens of each row.

    Returns:
        [B]; 0 for a row without any.
    """
    return inside(value_BT, mask_BT).sum(dim=1)


def row_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Average over the masked tokens of each row.

    Returns:
        [B]; 0 for a row without any.
    """
    return row_sum(value_BT, mask_BT) / mask_BT.sum(dim=1).clamp(min=1)


def straight_through(pooled_B: Tensor, x: LossInputs) -> Tensor:
    """Give every token its row's pooled number, with the gradient of the token's own log-prob: sg[pooled] + logp - sg[logp].

    The form of GSPO-token (arXiv:2507.18071, eq. 14), which allows an advantage per token. With one advantage per row and a reducer
    that divides by the row's tokens, the gradient is that of the row's mean log-prob.

    Returns:
        [B, T]
    """
    logp_BT = inside(x.logp_BT, x.mask_BT)
    # logp - sg[logp] is 0 in value and dlogp in gradient
    return pooled_B.detach()[:, None] + (logp_BT - logp_BT.detach())


def sequence_ratio(x: LossInputs) -> Tensor:
    """Compute exp(mean of the row's log-ratios) for every token, straight through.

    Returns:
        [B, T]; differs from 1 on the mask only.
    """
    log_BT = straight_through(row_mean(log_ratio(x), x.mask_BT), x)
    return inside(log_BT, x.mask_BT).exp()


def mean_logp(x: LossInputs) -> Tensor:
    """Average the log-probs of the row's tokens.

    Returns:
        [B], in nats per token.
    """
    return row_mean(x.logp_BT, x.mask_BT)


def mean_ratio(x: LossInputs) -> Tensor:
    """Average the ratios of the row's tokens, not clipped.

    Returns:
        [B]
    """
    return row_mean(token_ratio(x), x.mask_BT)


def mean_log_ratio(x: LossInputs) -> Tensor:
    """Average the log-ratios of the row's tokens.

    Returns:
        [B], in nats per token.
    """
    return row_mean(log_ratio(x), x.mask_BT)


def sum_log_ratio(x: LossInputs) -> Tensor:
    """Sum the log-ratios of the row's tokens: that of the whole row.

    Returns:
        [B], in nats, within +-20.
    """
    return row_sum(log_ratio(x), x.mask_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def total_log_ratio(x: LossInputs) -> Tensor:
    """Sum the log-ratios of the row's tokens: that of the whole row, not bounded.

    Returns:
        [B], in nats.
    """
    return row_sum(log_ratio(x), x.mask_BT)


SCORES: Mapping[str, Callable[[LossInputs], Tensor]] = {
    "logL": mean_logp,
    "ratio": mean_ratio,
    "log_ratio": mean_log_ratio,
    "log_ratio_sum": sum_log_ratio,
    "log_ratio_total": total_log_ratio,
}
"""Row scores [B] by name: what group losses compare, and what the need `score_mean_B` is the mean of."""


# ---- gates -------------------------------------------------------------------------------------------------------------
#
# c = -dL/dlogp is the number that multiplies the gradient of a token's log-prob. All tensors are [B, T] and already masked (see
# `inside`); bounds are numbers or tensors that broadcast.

Metrics = dict[str, tuple[Tensor, Tensor]]


def min_clip(ratio_BT: Tensor, adv_BT: Tensor, low: float, high: float, free_BT: Tensor | None = None) -> Tensor:
    """Clip as PPO does: -min(ratio * A, clip(ratio, low, high) * A). `free_BT` replaces the ratio of the unclipped branch.

    c = ratio * A, and 0 where (A > 0 and ratio > high) or (A < 0 and ratio < low).

    Returns:
        [B, T] loss.
    """
    free_BT = ratio_BT if free_BT is None else free_BT
    return -torch.minimum(free_BT * adv_BT, ratio_BT.clamp(low, high) * adv_BT)


def two_sided(ratio_BT: Tensor, delta: float | None) -> Tensor:
    """Cap the ratio of the unclipped branch at `delta`: for A < 0 and ratio > delta, c = 0. arXiv:2505.07291.

    Returns:
        [B, T] ratio.
    """
    return ratio_BT if delta is None else ratio_BT.clamp(max=delta)


def dual(loss_BT: Tensor, adv_BT: Tensor, bound: float | None) -> Tensor:
    """Cap the loss at -bound * A where A < 0: there c = 0 for ratio > bound. arXiv:1912.09729, eq. 5.

    Returns:
        [B, T] loss.
    """
    if bound is None:
        return loss_BT
    return torch.where(adv_BT < 0, torch.minimum(loss_BT, -bound * adv_BT), loss_BT)


def detached_clip(ratio_BT: Tensor, adv_BT: Tensor, logp_BT: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Weigh log-probs by clipped ratios: -sg[clip(ratio, low, high)] * A * logp. c = clip(ratio) * A, so no token loses its gradient.

    Returns:
        [B, T] loss, whose value means nothing.
    """
    bounds = [b if isinstance(b, Tensor) else torch.full_like(ratio_BT, b) for b in (low, high)]
    return -torch.minimum(torch.maximum(ratio_BT, bounds[0]), bounds[1]).detach() * adv_BT * logp_BT


def soft(ratio_BT: Tensor, adv_BT: Tensor, tau_positive: float, tau_negative: float) -> Tensor:
    """Gate the ratio by a sigmoid: -(4 / tau) * sigmoid(tau * (ratio - 1)) * A with tau by the sign of A. arXiv:2511.20347.

    Returns:
        [B, T] loss; c = 4 * s * (1 - s) * ratio * A, s the sigmoid.
    """
    tau_BT = torch.where(adv_BT > 0, torch.full_like(adv_BT, tau_positive), torch.full_like(adv_BT, tau_negative))
    return -(4 / tau_BT) * torch.sigmoid(tau_BT * (ratio_BT - 1)) * adv_BT


@torch.no_grad()
def clip_metrics(ratio_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, low: float | Tensor, high: float | Tensor) -> Metrics:
    """Count tokens outside the bound that the sign of A selects, and sum the ratios.

    Returns:
        Shares of such tokens above and below, and the mean ratio, as (sum, count).
    """
    count = mask_BT.sum()
    above = ((ratio_BT > high) & (adv_BT > 0) & mask_BT).sum()
    below = ((ratio_BT < low) & (adv_BT < 0) & mask_BT).sum()
    ratio = torch.where(mask_BT, ratio_BT, torch.zeros_like(ratio_BT)).sum()
    return {"clip_ratio/high": (above, count), "clip_ratio/low": (below, count), "ratio/mean": (ratio, count)}


@torch.no_grad()
def weight_metrics(ratio_BT: Tensor, mask_BT: Tensor, low: float | Tensor, high: float | Tensor) -> Metrics:
    """Count tokens whose weight was cut, whatever the sign of A, and sum the ratios.

    Returns:
        Shares of such tokens above and below, and the mean ratio, as (sum, count).
    """
    count = mask_BT.sum()
    ratio = torch.where(mask_BT, ratio_BT, torch.zeros_like(ratio_BT)).sum()
    above, below = ((ratio_BT > high) & mask_BT).sum(), ((ratio_BT < low) & mask_BT).sum()
    return {"clip_ratio/high": (above, count), "clip_ratio/low": (below, count), "ratio/mean": (ratio, count)}


def check_bounds(loss: str, low: float, high: float, names: str) -> None:
    """Refuse bounds that are not 0 <= low <= 1 <= high: outside, a token at ratio 1 would not get its advantage.

    Raises:
        ValueError: they are not.
    """
    if not 0 <= low <= 1 <= high:
        raise ValueError(f"policy_loss '{loss}': {names} are {low} and {high}; they must satisfy 0 <= min <= 1 <= max")


def _rows(mask_BT: Tensor) -> Tensor:
    return mask_BT.any(dim=1).sum().double()


@reducer("seq_mean", paper="arXiv:2402.03300")
def seq_mean(mask_BT: Tensor) -> Reduction:
    """Average each row over its tokens, then over the rows, as GRPO does. A token of a short answer weighs more.

    Returns:
        Weights [B, T], 1 / the row's tokens on the mask; the count is of rows.
    """
    # loss = 1/B sum_i 1/n_i sum_t l_it
    return Reduction(mask_BT.double() / mask_BT.sum(dim=1, keepdim=True).clamp(min=1), _rows(mask_BT))


def _weakens_brevity(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    if stage.answer_format == "think_or_not":
        yield "reduce 'token_mean' weakens the push to short answers that answer_format 'think_or_not' relies on; seq_mean keeps it"


@reducer("token_mean", paper="arXiv:2503.14476", doubts=_weakens_brevity)
def token_mean(mask_BT: Tensor) -> Reduction:
    """Average over all tokens of the step, as DAPO does.

    Returns:
        Weights [B, T], 1 on the mask; the count is of tokens.
    """
    # loss = sum_it l_it / sum_i n_i, over the whole step: not a mean of the micro-batches' means
    return Reduction(mask_BT.double(), mask_BT.sum().double())


@reducer("fixed_length", paper="arXiv:2503.20783")
def fixed_length(mask_BT: Tensor, *, length: int) -> Reduction:
    """Divide each row's sum by a constant (the longest allowed answer, not the longest of the batch), average over rows, as Dr.GRPO does.

    Returns:
        Weights [B, T], 1 / `length` on the mask; the count is of rows.

    Raises:
        ValueError: `length` below 1.
    """
    if length < 1:
        raise ValueError(f"reduce 'fixed_length': length is {length}; it must be at least 1, the longest allowed answer in tokens")
    # loss = 1/B sum_i 1/length sum_t l_it
    return Reduction(mask_BT.double() / length, _rows(mask_BT))


@reducer("seq_sum", paper="Williams 1992, REINFORCE")
def seq_sum(mask_BT: Tensor) -> Reduction:
    """Average over rows the sum over their tokens: the gradient of whole-answer log-probs. A long answer weighs more.

    Returns:
        Weights [B, T], 1 on the mask; the count is of rows.
    """
    # loss = 1/B sum_i sum_t l_it
    return Reduction(mask_BT.double(), _rows(mask_BT))
