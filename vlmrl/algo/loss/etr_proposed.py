"""ETR: a trust region that is wider for strong signals and for prompts that can be learned. After arXiv:2601.03723.

The abstract: the clip bounds grow with |A|, and with the variance of the group's rewards. Ours, as the functions were not to be found:

    eps_i = clip(clip * (1 + a tanh|A_i| - a/2) * (1 + 4 b p (1 - p) - b/2), low, high),  clip_low = eps_i, clip_high = 1.4 eps_i

with p the pass rate of the group, and PPO's clipped surrogate. p is read off the advantage: for rewards of 0 and 1 and advantages that are
z-scores with the population deviation, p (1 - p) = A^2 / (1 + A^2)^2, whatever the size of the group; so take `advantage: {name: grpo,
ddof: 0}`. With a = b = 0 it is `ppo_clip`. The log-ratio is clamped to +-20 before exp.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss

ABOVE = 1.4
"""The bound above 1, in units of the one below."""


def elastic(adv: Tensor, spread: Tensor, *, clip: float, a: float, b: float, low: float, high: float) -> Tensor:
    """eps of advantages and p * (1 - p), elementwise."""
    return (clip * (1 + a * adv.abs().tanh() - a / 2) * (1 + 4 * b * spread - b / 2)).clamp(low, high)


def spread_of(adv: Tensor) -> Tensor:
    """p * (1 - p) of the group of a z-score of 0/1 rewards."""
    return (adv / (1 + adv.square())).square()


@policy_loss("etr_proposed", paper="arXiv:2601.03723", needs_updates_per_step=2, wants={"advantage": ("grpo",)})
def etr_proposed(x: LossInputs, *, clip: float = 0.2, a: float = 0.5, b: float = 0.5, low: float = 0.1, high: float = 0.4) -> LossOutput:
    """Clipped surrogate with bounds by advantage and pass rate. [B, T]

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0 <= low <= high < 1 or clip <= 0 or not 0 <= a < 2 or not 0 <= b < 2:
        raise ValueError(
            f"policy_loss 'etr_proposed': needs 0 <= low {low} <= high {high} < 1, clip {clip} > 0, and a {a}, b {b} in [0, 2)"
        )
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    ratio_BT = ratio.token_ratio(x)
    eps_BT = elastic(adv_BT, spread_of(adv_BT), clip=clip, a=a, b=b, low=low, high=high).detach()
    least_BT, most_BT = 1 - eps_BT, 1 + ABOVE * eps_BT
    clipped_BT = torch.minimum(torch.maximum(ratio_BT, least_BT), most_BT)
    loss_BT = -torch.minimum(ratio_BT * adv_BT, clipped_BT * adv_BT)
    return LossOutput(loss_BT, ratio.clip_metrics(ratio_BT, adv_BT, x.mask_BT, least_BT, most_BT))
