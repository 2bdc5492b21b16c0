"""REC-OneSide-NoIS: REINFORCE without an importance weight, and PPO's mask. arXiv:2509.24203.

loss = -A * logp * 1[(A > 0 and rho <= 1 + clip_high) or (A < 0 and rho >= 1 - clip_low)]

so rho only says which tokens train. The paper's finding: dropping the weights costs nothing, dropping the mask collapses; wide bounds
(0.6, 2.0) train faster than (0.2, 0.2). The value of the loss holds log-probs and means nothing. Ours: the log-ratio is clamped to +-20.
"""

from __future__ import annotations

import torch

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("rec", paper="arXiv:2509.24203", needs_updates_per_step=2)
def rec(x: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2) -> LossOutput:
    """REINFORCE on the tokens whose ratio PPO would not clip. [B, T]

    Raises:
        ValueError: a bound on the wrong side of 1.
    """
    ratio.check_bounds("rec", 1 - clip_low, 1 + clip_high, "1 - clip_low and 1 + clip_high")
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    with torch.no_grad():
        ratio_BT = ratio.token_ratio(x)
        kept_BT = torch.where(adv_BT > 0, ratio_BT <= 1 + clip_high, ratio_BT >= 1 - clip_low)
    loss_BT = -torch.where(kept_BT, adv_BT, torch.zeros_like(adv_BT)) * ratio.inside(x.logp_BT, x.mask_BT)
    return LossOutput(loss_BT, ratio.clip_metrics(ratio_BT, adv_BT, x.mask_BT, 1 - clip_low, 1 + clip_high))
