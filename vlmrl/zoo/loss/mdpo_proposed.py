"""MDPO: a divergence from the old policy in place of a clip: mirror descent. After arXiv:2005.09814.

loss = -rho * A + weight * KL(policy || old policy), for several updates on one batch. At the old policy the second term has no gradient;
it grows until a token stands where rho * A is worth it. The paper's weight is 1 / t_k, annealed. Ours, for tokens without their whole
distribution: the estimator `unbiased` of `algo.kl`, whose gradient is rho * (logp - logp_old); a constant `weight` of 0.1, as a loss
does not know the step; the log-ratio is clamped to +-20.
"""

from __future__ import annotations

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.kl import unbiased
from vlmrl.algo.registries import policy_loss


@policy_loss("mdpo_proposed", paper="arXiv:2005.09814", needs_updates_per_step=2)
def mdpo_proposed(x: LossInputs, *, weight: float = 0.1) -> LossOutput:
    """Importance-weighted policy gradient with a pull to the old policy; the coefficient is rho * (A - weight * log rho). [B, T]

    Raises:
        ValueError: a negative weight.
    """
    if weight < 0:
        raise ValueError(f"policy_loss 'mdpo_proposed': weight is {weight}; it must not be negative")
    ratio_BT = ratio.token_ratio(x)
    logp_BT, old_BT = ratio.inside(x.logp_BT, x.mask_BT), ratio.inside(x.logp_old_BT, x.mask_BT)
    kl_BT = unbiased(logp_BT, old_BT, old_BT)
    metrics = {"mdpo_proposed/kl": (ratio.inside(kl_BT.detach(), x.mask_BT).sum(), x.mask_BT.sum())}
    return LossOutput(-ratio_BT * ratio.inside(x.adv_BT, x.mask_BT) + weight * kl_BT, metrics)
