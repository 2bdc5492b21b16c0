"""AsymRE: REINFORCE without a rho, with a baseline below the group's mean. arXiv:2506.20520.

loss = -(A - shift) * logp with A = r - mean_g r, that is, the baseline mean_g r + shift. A negative shift is a constant positive
advantage: right answers weigh more than wrong ones, which keeps a policy that learns from others' answers from collapsing.
Default shift -0.1 on all rows, as in Trinity-RFT. Use an advantage that is not divided by the deviation.
`rows="offpolicy"` shifts only rows that the policy did not sample (`offpolicy_B`) and leaves plain REINFORCE on its own.
Ours: that switch; it is the loss that shifts, so a group that selection drops gets nothing, and an unjudged row gets -shift.
"""

from __future__ import annotations

from typing import Literal

import torch

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("asymre", paper="arXiv:2506.20520", needs=("offpolicy_B",), unscaled=True, uses_flat_groups=True)
def asymre(x: LossInputs, *, shift: float = -0.1, rows: Literal["all", "offpolicy"] = "all") -> LossOutput:
    """REINFORCE with a shifted baseline; the coefficient of a token is A - shift. [B, T]

    Raises:
        ValueError: `rows="offpolicy"` without `offpolicy_B`.
    """
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    shift_BT = torch.full_like(adv_BT, shift)
    if rows == "offpolicy":
        shift_BT = torch.where(x.need("offpolicy_B", "asymre")[:, None], shift_BT, torch.zeros_like(shift_BT))
    weight_BT = ratio.inside(adv_BT - shift_BT, x.mask_BT)
    rho = ratio.inside(ratio.token_ratio(x), x.mask_BT).sum().detach()
    return LossOutput(-weight_BT * ratio.inside(x.logp_BT, x.mask_BT), {"ratio/mean": (rho, x.mask_BT.sum())})
