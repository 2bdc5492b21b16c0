"""DISPO: CISPO with bounds of its own for right and for wrong answers. arXiv:2602.00983.

loss = -sg[clip(rho, low(A), high(A))] * A * logp, with the pair of bounds chosen by the sign of A; reducer `token_mean`.
The paper: for right answers, weights above 1 raise entropy and weights below 1 lower it, and too much of either decays slowly, so
tighten the `positive_` bounds first; for wrong answers, tight bounds collapse suddenly, so keep the `negative_` bounds loose.
Ours: the values of the four bounds in the paper were not available to us; the defaults (0 and 5 on both sides) are those of `cispo`,
so that it starts identical. The log-ratio is clamped to +-20 before exp.
"""

from __future__ import annotations

import torch

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("dispo", paper="arXiv:2602.00983", needs_updates_per_step=2, wants={"reduce": ("token_mean",)})
def dispo(
    x: LossInputs, *, positive_min: float = 0.0, positive_max: float = 5.0, negative_min: float = 0.0, negative_max: float = 5.0
) -> LossOutput:
    """Policy gradient weighted by a ratio that is clipped by the sign of the advantage. [B, T]

    Raises:
        ValueError: not 0 <= min <= 1 <= max on either side.
    """
    ratio.check_bounds("dispo", positive_min, positive_max, "positive_min and positive_max")
    ratio.check_bounds("dispo", negative_min, negative_max, "negative_min and negative_max")
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    ratio_BT = ratio.token_ratio(x)
    right_BT = adv_BT > 0
    low_BT = torch.where(right_BT, torch.full_like(adv_BT, positive_min), torch.full_like(adv_BT, negative_min))
    high_BT = torch.where(right_BT, torch.full_like(adv_BT, positive_max), torch.full_like(adv_BT, negative_max))
    loss_BT = ratio.detached_clip(ratio_BT, adv_BT, ratio.inside(x.logp_BT, x.mask_BT), low_BT, high_BT)
    return LossOutput(loss_BT, ratio.weight_metrics(ratio_BT, x.mask_BT, low_BT, high_BT))
