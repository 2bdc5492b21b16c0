"""Gates: how a ratio and an advantage become a token loss, and where the gradient stops. The second axis of the ratio losses.

c = -dL/dlogp is the number that multiplies the gradient of a token's log-prob. All tensors are [B, T] and already masked (see
`algo.level.inside`); bounds are numbers or tensors that broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor

Metrics = dict[str, tuple[Tensor, Tensor]]


def min_clip(ratio_BT: Tensor, adv_BT: Tensor, low: float, high: float, free_BT: Tensor | None = None) -> Tensor:
    """PPO: -min(ratio * A, clip(ratio, low, high) * A). `free_BT` replaces the ratio of the unclipped branch.

    c = ratio * A, and 0 where (A > 0 and ratio > high) or (A < 0 and ratio < low).
    """
    free_BT = ratio_BT if free_BT is None else free_BT
    return -torch.minimum(free_BT * adv_BT, ratio_BT.clamp(low, high) * adv_BT)


def two_sided(ratio_BT: Tensor, delta: float | None) -> Tensor:
    """The ratio of the unclipped branch, at most `delta`: for A < 0 and ratio > delta, c = 0. arXiv:2505.07291."""
    return ratio_BT if delta is None else ratio_BT.clamp(max=delta)


def dual(loss_BT: Tensor, adv_BT: Tensor, bound: float | None) -> Tensor:
    """The loss, at most -bound * A where A < 0: there c = 0 for ratio > bound. arXiv:1912.09729, eq. 5."""
    if bound is None:
        return loss_BT
    return torch.where(adv_BT < 0, torch.minimum(loss_BT, -bound * adv_BT), loss_BT)


def detached_clip(ratio_BT: Tensor, adv_BT: Tensor, logp_BT: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """-sg[clip(ratio, low, high)] * A * logp: c = clip(ratio) * A, so no token loses its gradient. The value means nothing."""
    bounds = [torch.as_tensor(b, dtype=ratio_BT.dtype, device=ratio_BT.device) for b in (low, high)]
    return -torch.minimum(torch.maximum(ratio_BT, bounds[0]), bounds[1]).detach() * adv_BT * logp_BT


def soft(ratio_BT: Tensor, adv_BT: Tensor, tau_positive: float, tau_negative: float) -> Tensor:
    """-(4 / tau) * sigmoid(tau * (ratio - 1)) * A with tau by the sign of A: c = 4 * s * (1 - s) * ratio * A. arXiv:2511.20347."""
    tau_BT = torch.where(adv_BT > 0, torch.full_like(adv_BT, tau_positive), torch.full_like(adv_BT, tau_negative))
    return -(4 / tau_BT) * torch.sigmoid(tau_BT * (ratio_BT - 1)) * adv_BT


@torch.no_grad()
def clip_metrics(ratio_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor, low: float | Tensor, high: float | Tensor) -> Metrics:
    """Share of tokens outside the bound that the sign of A selects, and the mean ratio, as (sum, count)."""
    count = mask_BT.sum()
    above = ((ratio_BT > high) & (adv_BT > 0) & mask_BT).sum()
    below = ((ratio_BT < low) & (adv_BT < 0) & mask_BT).sum()
    ratio = torch.where(mask_BT, ratio_BT, torch.zeros_like(ratio_BT)).sum()
    return {"clip_ratio/high": (above, count), "clip_ratio/low": (below, count), "ratio/mean": (ratio, count)}


@torch.no_grad()
def weight_metrics(ratio_BT: Tensor, mask_BT: Tensor, low: float | Tensor, high: float | Tensor) -> Metrics:
    """Share of tokens whose weight was cut, whatever the sign of A, and the mean ratio, as (sum, count)."""
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
