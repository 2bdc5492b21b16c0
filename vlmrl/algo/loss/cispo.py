"""CISPO: REINFORCE with a clipped and detached importance weight. arXiv:2506.13585, eq. 4-5.

loss = -sg[clip(rho, ratio_min, ratio_max)] * A * logp, so the coefficient of every token is clip(rho) * A: none loses its gradient.
The bounds are absolute ratios (some libraries take them as distances from 1). Defaults: no lower bound, upper bound 5
(arXiv:2510.13786). Use the reducer `token_mean`. The value of the loss holds log-probs and means nothing; look at the metrics.
Ours: the log-ratio is clamped to +-20 before exp.
"""

from __future__ import annotations

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("cispo", paper="arXiv:2506.13585", needs_updates_per_step=2, wants={"reduce": ("token_mean",)})
def cispo(x: LossInputs, *, ratio_min: float = 0.0, ratio_max: float = 5.0) -> LossOutput:
    """Weigh the policy gradient by the clipped ratio.

    Returns:
        Loss [B, T], with metrics.

    Raises:
        ValueError: not 0 <= ratio_min <= 1 <= ratio_max.
    """
    ratio.check_bounds("cispo", ratio_min, ratio_max, "ratio_min and ratio_max")
    ratio_BT = ratio.token_ratio(x)
    loss_BT = ratio.detached_clip(ratio_BT, ratio.inside(x.adv_BT, x.mask_BT), ratio.inside(x.logp_BT, x.mask_BT), ratio_min, ratio_max)
    return LossOutput(loss_BT, ratio.weight_metrics(ratio_BT, x.mask_BT, ratio_min, ratio_max))
