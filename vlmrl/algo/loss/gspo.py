"""GSPO: one importance ratio per answer, clipped as a whole. arXiv:2507.18071, eq. 5-7 and 14 (GSPO-token).

s_i = exp(mean_t(logp - logp_old)),  loss_it = -min(s_it * A_it, clip(s_it, 1 - clip_low, 1 + clip_high) * A_it), where s_it has the
value of s_i and the gradient of token t. With one advantage per answer this is GSPO, with several GSPO-token. The objective of the
paper is that of the reducer `seq_mean`: the coefficient of a token is then s_i * A_i / n_i, and 0 in an answer that is clipped.
Defaults: the bounds of section 5.1; shares of clipped tokens of tens of percent are normal at that width.
Ours: each token's log-ratio is clamped to +-20 before the mean.
"""

from __future__ import annotations

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("gspo", paper="arXiv:2507.18071", needs_updates_per_step=2, wants={"reduce": ("seq_mean", "seq_sum")})
def gspo(x: LossInputs, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> LossOutput:
    """Clip the policy gradient at a length-normalised ratio of the whole answer.

    Returns:
        Loss [B, T]; metrics count tokens.
    """
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    ratio_BT = ratio.sequence_ratio(x)
    low, high = 1 - clip_low, 1 + clip_high
    return LossOutput(ratio.min_clip(ratio_BT, adv_BT, low, high), ratio.clip_metrics(ratio_BT, adv_BT, x.mask_BT, low, high))
