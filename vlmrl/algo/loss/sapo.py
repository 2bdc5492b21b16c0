"""SAPO: a soft gate instead of a clip. arXiv:2511.20347.

loss = -(4 / tau) * sigmoid(tau * (rho - 1)) * A with tau = tau_positive for A > 0 and tau_negative otherwise. The coefficient of a
token is 4 * s * (1 - s) * rho * A, s = sigmoid(tau * (rho - 1)): A at rho = 1, fading on both sides, never cut.
Defaults and formula as in TRL. Ours: the log-ratio is clamped to +-20 before exp.
"""

from __future__ import annotations

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("sapo", paper="arXiv:2511.20347", needs_updates_per_step=2)
def sapo(x: LossInputs, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> LossOutput:
    """Gate the policy gradient by a sigmoid of the ratio.

    Returns:
        Loss [B, T], with metrics.

    Raises:
        ValueError: a temperature that is not positive.
    """
    if min(tau_positive, tau_negative) <= 0:
        raise ValueError(f"policy_loss 'sapo': tau_positive is {tau_positive} and tau_negative {tau_negative}; both must be above 0")
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    ratio_BT = ratio.token_ratio(x)
    loss_BT = ratio.soft(ratio_BT, adv_BT, tau_positive, tau_negative)
    return LossOutput(loss_BT, {"ratio/mean": (ratio.inside(ratio_BT, x.mask_BT).sum().detach(), x.mask_BT.sum())})
