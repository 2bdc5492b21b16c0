"""Rank-GRPO's loss: one ratio per item of a list. arXiv:2510.20150, with the authors' code.

The ratio of an item is exp(mean over its tokens of the log-ratio), with PPO's clip; the advantage is that of reweight `rank_grpo`. Ours:
tokens outside the items share one ratio; the gradient reaches each token's own log-prob, as in GSPO-token.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


def of_items(value_BT: Tensor, item_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the masked tokens of each token's item; 0 outside the mask. [B, T]"""
    index_BT = torch.where(mask_BT, item_BT, torch.zeros_like(item_BT))
    width = value_BT.shape[1]
    total_BS = torch.zeros(len(value_BT), width, dtype=value_BT.dtype, device=value_BT.device)
    count_BS = torch.zeros_like(total_BS)
    total_BS = total_BS.scatter_add(1, index_BT, ratio.inside(value_BT, mask_BT))
    count_BS = count_BS.scatter_add(1, index_BT, mask_BT.to(value_BT.dtype))
    return ratio.inside((total_BS / count_BS.clamp(min=1)).gather(1, index_BT), mask_BT)


@policy_loss("rank_grpo", paper="arXiv:2510.20150", needs=("item_BT",), needs_updates_per_step=2, wants={"reduce": ("token_mean",)})
def rank_grpo(x: LossInputs, *, clip: float = 0.2) -> LossOutput:
    """Clipped surrogate with one ratio per item of a list. [B, T]; metrics count tokens.

    Raises:
        ValueError: a clip outside [0, 1), or `item_BT` is None.
    """
    if not 0 <= clip < 1:
        raise ValueError(f"policy_loss 'rank_grpo': clip is {clip}; it must be in [0, 1)")
    item_BT = x.need("item_BT", "rank_grpo").long() + 1  # 0: outside; so there may be one number more than tokens
    adv_BT, logp_BT = ratio.inside(x.adv_BT, x.mask_BT), ratio.inside(x.logp_BT, x.mask_BT)
    pooled_BT = of_items(pad(ratio.log_ratio(x), (0, 1)), pad(item_BT, (0, 1)), pad(x.mask_BT, (0, 1)))[:, :-1].detach()
    ratio_BT = ratio.inside(pooled_BT + (logp_BT - logp_BT.detach()), x.mask_BT).exp()
    return LossOutput(
        ratio.min_clip(ratio_BT, adv_BT, 1 - clip, 1 + clip), ratio.clip_metrics(ratio_BT, adv_BT, x.mask_BT, 1 - clip, 1 + clip)
    )
