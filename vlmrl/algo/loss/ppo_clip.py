"""PPO's clipped surrogate at token level, as GRPO uses it. arXiv:1707.06347, eq. 7; clip-higher arXiv:2503.14476, eq. 10.

loss = -min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A),  rho = exp(logp - logp_old).
`dual_clip` c (arXiv:1912.09729, eq. 5): for A < 0 the loss is at most -c * A. `delta` (arXiv:2505.07291): rho is capped at delta in
the unclipped branch. Ours: the log-ratio is clamped to +-20 before exp.
"""

from __future__ import annotations

import torch

from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss

MAX_LOG_RATIO = 20.0


@policy_loss("ppo_clip", paper="arXiv:1707.06347")
def ppo_clip(
    x: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None, delta: float | None = None
) -> LossOutput:
    """Clipped importance-weighted policy gradient."""
    zero = torch.zeros_like(x.logp_BT)
    log_ratio_BT = torch.where(x.mask_BT, x.logp_BT, zero) - torch.where(x.mask_BT, x.logp_old_BT, zero)
    adv_BT = torch.where(x.mask_BT, x.adv_BT, zero)
    ratio_BT = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    free_BT = ratio_BT if delta is None else ratio_BT.clamp(max=delta)
    loss_BT = -torch.minimum(free_BT * adv_BT, ratio_BT.clamp(1 - clip_low, 1 + clip_high) * adv_BT)
    if dual_clip is not None:
        loss_BT = torch.where(adv_BT < 0, torch.minimum(loss_BT, -dual_clip * adv_BT), loss_BT)
    with torch.no_grad():
        count = x.mask_BT.sum()
        high = ((ratio_BT > 1 + clip_high) & (adv_BT > 0) & x.mask_BT).sum()
        low = ((ratio_BT < 1 - clip_low) & (adv_BT < 0) & x.mask_BT).sum()
        ratio = torch.where(x.mask_BT, ratio_BT, zero).sum()
    return LossOutput(loss_BT, {"clip_ratio/high": (high, count), "clip_ratio/low": (low, count), "ratio/mean": (ratio, count)})
