"""GBPO: every ratio is drawn to a target by the median of its group. arXiv:2604.18578 (Bounded Ratio RL), with the authors' code.

rho* = 1 - clip_low + (clip_low + clip_high) * sigmoid(z / temperature),  loss = |A| * |rho - rho*|

with z the z-score of the reward less that of the group's median: the advantage of `grpo` less its median in the group. With the small
temperature of the authors' scripts answers above the median go to 1 + clip_high, those below to 1 - clip_low, those at it stay. The
coefficient is |A| * sign(rho* - rho) * rho: unlike PPO's there is no dead zone, a token past its target is drawn back. Where most answers
of a group are right only the wrong ones move, where most are wrong only the right ones. Reducer `token_mean`. At an answer exactly on
its target the gradient is 0. Ours: the log-ratio is clamped to +-20 before exp.
"""

from __future__ import annotations

import torch

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("gbpo", paper="arXiv:2604.18578", needs=("adv_median_B",), wants={"advantage": ("grpo",), "reduce": ("token_mean",)})
def gbpo(x: LossInputs, *, clip_low: float = 0.3, clip_high: float = 0.3, temperature: float = 1e-4) -> LossOutput:
    """Distance of the ratio from its target, weighted by the size of the advantage. [B, T]

    Raises:
        ValueError: bounds outside [0, 1] below or negative above, a temperature that is not positive; `adv_median_B` is None.
    """
    if not 0 <= clip_low <= 1 or clip_high < 0 or temperature <= 0:
        raise ValueError(
            f"policy_loss 'gbpo': needs 0 <= clip_low {clip_low} <= 1, clip_high {clip_high} >= 0 and temperature {temperature} > 0"
        )
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT).detach()
    above_BT = adv_BT - x.need("adv_median_B", "gbpo").to(adv_BT)[:, None]
    target_BT = 1 - clip_low + (clip_low + clip_high) * torch.sigmoid(above_BT / temperature)
    ratio_BT = ratio.token_ratio(x)
    metrics = ratio.clip_metrics(ratio_BT, adv_BT, x.mask_BT, 1 - clip_low, 1 + clip_high)
    return LossOutput((ratio_BT - target_BT).abs() * adv_BT.abs(), metrics)
