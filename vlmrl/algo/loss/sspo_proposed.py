"""SSPO: one importance ratio per sentence, clipped the wider the less sure the policy is of the sentence. After arXiv:2511.04256.

u_is = exp(mean over the tokens of sentence s of logp - logp_old), for every token of the sentence straight through as in GSPO-token, in
PPO's clipped surrogate. The abstract: sentences of high entropy get wider bounds. Ours: eps_is = clip * the sentence's mean entropy over
the mean of the answer's sentences, held in [1/2, 2]; clip 0.02, between those of tokens and of answers; sentences end after a token with
. ! ? or a line break, at least four tokens long (`segment_BT`). One sentence per answer is `gspo` with that clip, one per token is
`ppo_clip`. With the reducer `seq_mean` the coefficient of a token is u * A over the answer's length. The log-ratio is clamped to +-20.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss

NARROWEST, WIDEST = 0.5, 2.0


def of_sentences(value_BT: Tensor, segment_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the masked tokens of each token's sentence; 0 outside the mask. [B, T]"""
    index_BT = torch.where(mask_BT, segment_BT, torch.zeros_like(segment_BT))
    width = value_BT.shape[1]
    total_BS = torch.zeros(len(value_BT), width, dtype=value_BT.dtype, device=value_BT.device)
    count_BS = torch.zeros_like(total_BS)
    total_BS = total_BS.scatter_add(1, index_BT, ratio.inside(value_BT, mask_BT))
    count_BS = count_BS.scatter_add(1, index_BT, mask_BT.to(value_BT.dtype))
    return ratio.inside((total_BS / count_BS.clamp(min=1)).gather(1, index_BT), mask_BT)


def widths(x: LossInputs, segment_BT: Tensor, clip: float) -> Tensor:
    """eps of each token's sentence. [B, T]"""
    if x.entropy_BT is None:
        return torch.full_like(x.logp_BT, clip).detach()
    mean_BT = of_sentences(x.entropy_BT.detach(), segment_BT, x.mask_BT)
    first_BT = x.mask_BT.clone()  # each sentence counts once: at its first token
    first_BT[:, 1:] &= segment_BT[:, 1:] != segment_BT[:, :-1]
    typical_B = ratio.row_mean(mean_BT, first_BT)
    share_BT = torch.where(typical_B[:, None] > 0, mean_BT / typical_B[:, None].clamp(min=1e-12), torch.ones_like(mean_BT))
    return (clip * share_BT.clamp(NARROWEST, WIDEST)).to(x.logp_BT.dtype)


@policy_loss("sspo_proposed", paper="arXiv:2511.04256", needs=("segment_BT",), needs_updates_per_step=2)
def sspo_proposed(x: LossInputs, *, clip: float = 0.02) -> LossOutput:
    """Clipped surrogate with one ratio per sentence. [B, T]; metrics count tokens.

    Raises:
        ValueError: a clip outside [0, 1/2]; `segment_BT` is None.
    """
    if not 0 <= clip <= 1 / WIDEST:
        raise ValueError(f"policy_loss 'sspo_proposed': clip is {clip}; it must be in [0, {1 / WIDEST}]")
    segment_BT = x.need("segment_BT", "sspo_proposed").long()
    adv_BT, logp_BT = ratio.inside(x.adv_BT, x.mask_BT), ratio.inside(x.logp_BT, x.mask_BT)
    pooled_BT = of_sentences(ratio.log_ratio(x), segment_BT, x.mask_BT).detach()
    ratio_BT = ratio.inside(pooled_BT + (logp_BT - logp_BT.detach()), x.mask_BT).exp()
    eps_BT = widths(x, segment_BT, clip)
    low_BT, high_BT = 1 - eps_BT, 1 + eps_BT
    clipped_BT = torch.minimum(torch.maximum(ratio_BT, low_BT), high_BT)
    return LossOutput(
        -torch.minimum(ratio_BT * adv_BT, clipped_BT * adv_BT), ratio.clip_metrics(ratio_BT, adv_BT, x.mask_BT, low_BT, high_BT)
    )
