"""PPO's clipped surrogate at token level, as GRPO uses it. arXiv:1707.06347, eq. 7; clip-higher arXiv:2503.14476, eq. 10.

loss = -min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A),  rho = exp(logp - logp_old).
`dual_clip` c (arXiv:1912.09729, eq. 5): for A < 0 the loss is at most -c * A. `delta` (arXiv:2505.07291): rho is capped at delta in
the unclipped branch. Ours: the log-ratio is clamped to +-20 before exp.
"""

from __future__ import annotations

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("ppo_clip", paper="arXiv:1707.06347")
def ppo_clip(
    x: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None, delta: float | None = None
) -> LossOutput:
    """Clip the importance-weighted policy gradient.

    Returns:
        Loss [B, T], with metrics.
    """
    # whatever stands outside the mask, NaN included, must reach neither value nor gradient
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    ratio_BT = ratio.token_ratio(x)
    low, high = 1 - clip_low, 1 + clip_high
    loss_BT = ratio.dual(ratio.min_clip(ratio_BT, adv_BT, low, high, ratio.two_sided(ratio_BT, delta)), adv_BT, dual_clip)
    return LossOutput(loss_BT, ratio.clip_metrics(ratio_BT, adv_BT, x.mask_BT, low, high))
