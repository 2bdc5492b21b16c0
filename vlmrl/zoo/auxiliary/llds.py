"""LLDS: the likelihood of answers that are not wrong must not fall. arXiv:2512.04220, the likelihood-displacement regulariser.

    1[sum_t d_t > 0] * max(0, d_t),  d_t = logp_old - logp

so it acts where an answer has become less likely as a whole, and there on the tokens that have. With the first update of a step d is 0 and
there is no gradient: it needs several updates per step. Ours: it covers answers whose advantage is not negative (`rows`: all of them, or
not; sources differ), and is reduced like the policy's loss, with `weight` in the recipe (0.1 is a beginning). The log-ratio is
clamped to +-20.
"""

from __future__ import annotations

from typing import Literal

import torch

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import auxiliary_loss


@auxiliary_loss("llds", paper="arXiv:2512.04220", needs_updates_per_step=2)
def llds(x: LossInputs, *, rows: Literal["not_wrong", "all"] = "not_wrong") -> LossOutput:
    """How far each token has fallen, in answers that have fallen. [B, T]"""
    fallen_BT = -ratio.log_ratio(x)
    acts_B = ratio.row_sum(fallen_BT.detach(), x.mask_BT) > 0
    if rows == "not_wrong":
        acts_B &= ratio.row_sum(x.adv_BT, x.mask_BT) >= 0
    loss_BT = torch.where(acts_B[:, None], fallen_BT.clamp(min=0), torch.zeros_like(fallen_BT))
    return LossOutput(loss_BT, {"answers": (acts_B.sum(), x.mask_BT.any(dim=1).sum())})
