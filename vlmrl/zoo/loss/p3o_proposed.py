"""P3O: pairwise policy gradients, so that a reward that is the same for all answers of a prompt changes nothing. After arXiv:2310.00212.

The gradient of a pair is (r_1 - r_2) / 2 * grad log(pi(y_1) / pi(y_2)), with clipped ratios of whole answers. Over all pairs of a group the
factor of an answer is its reward less the mean of the others: the advantage `rloo`. Ours: that group form, the separate clip of each
answer's ratio exp(sum_t(logp - logp_old)), straight through as in GSPO-token, and the clip of 0.2. With the reducer `seq_sum` the
coefficient of a token is ratio * A. The log-ratio of an answer, and of each token, is clamped to +-20.
"""

from __future__ import annotations

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("p3o_proposed", paper="arXiv:2310.00212", needs_updates_per_step=2, wants={"advantage": ("rloo",), "reduce": ("seq_sum",)})
def p3o_proposed(x: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2) -> LossOutput:
    """Clipped surrogate with the ratio of the whole answer. [B, T]; metrics count tokens."""
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    log_BT = ratio.straight_through(ratio.sum_log_ratio(x), x)
    ratio_BT = ratio.inside(log_BT, x.mask_BT).exp()
    low, high = 1 - clip_low, 1 + clip_high
    return LossOutput(ratio.min_clip(ratio_BT, adv_BT, low, high), ratio.clip_metrics(ratio_BT, adv_BT, x.mask_BT, low, high))
