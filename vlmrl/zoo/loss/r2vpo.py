"""R2VPO: a penalty on the variance of the ratio in place of a clip. arXiv:2601.03320.

loss = -rho * A + weight * (rho - 1)^2. The coefficient of a token is rho * (A - 2 * weight * (rho - 1)): a soft brake that is 0 at rho =
1 + A / (2 * weight) and turns around beyond. The paper's weight is the multiplier of the constraint E[(rho - 1)^2] <= delta: here it is
a constant, 0.04 as in another implementation; for a multiplier that moves set it to 0 and add constraint `ratio_variance_proposed`.
Ours: the log-ratio is clamped to +-20 before exp.
"""

from __future__ import annotations

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("r2vpo", paper="arXiv:2601.03320", needs_updates_per_step=2)
def r2vpo(x: LossInputs, *, weight: float = 0.04) -> LossOutput:
    """Importance-weighted policy gradient with a penalty on the squared distance of the ratio from 1. [B, T]

    Raises:
        ValueError: a negative weight.
    """
    if weight < 0:
        raise ValueError(f"policy_loss 'r2vpo': weight is {weight}; it must not be negative")
    ratio_BT = ratio.token_ratio(x)
    away_BT = (ratio_BT - 1).square()
    metrics = {"ratio/variance": (ratio.inside(away_BT.detach(), x.mask_BT).sum(), x.mask_BT.sum())}
    return LossOutput(-ratio_BT * ratio.inside(x.adv_BT, x.mask_BT) + weight * away_BT, metrics)
