"""DHPO: the token's ratio and the answer's ratio, each clipped in a region of its own, then mixed. After arXiv:2601.05607.

loss_it = -[w_it min(rho_it A, clip(rho_it) A) + (1 - w_it) min(s_i A, clip(s_i) A)]

with rho of the token, and s_i = exp(mean_t(logp - logp_old)) straight through as in GSPO-token. The abstract: branches are clipped
before they are mixed, so an outlier in one moves the other not at all; mixed by halves, or by the token's entropy, so that uncertain
tokens keep credit of their own. Ours: w = 0.5, or the entropy over the largest of the answer (`mix: entropy`); the bounds, DAPO's for
tokens and GSPO's for answers; the log-ratio is clamped to +-20. With w = 1 it is `ppo_clip`, with w = 0 `gspo`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


def token_share(x: LossInputs, entropy_BT: Tensor) -> Tensor:
    """Entropy of each token over the largest of its answer, without gradient; 0 in an answer without entropy. [B, T]"""
    inside_BT = ratio.inside(entropy_BT.detach(), x.mask_BT)
    return inside_BT / inside_BT.amax(dim=1, keepdim=True).clamp(min=1e-12)


@policy_loss("dhpo_proposed", paper="arXiv:2601.05607", needs_updates_per_step=2)
def dhpo_proposed(
    x: LossInputs,
    *,
    mix: Literal["average", "entropy"] = "average",
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    row_clip_low: float = 3e-4,
    row_clip_high: float = 4e-4,
) -> LossOutput:
    """Mixture of a token's and an answer's clipped surrogate; `mix: entropy` reads `entropy_BT`. [B, T]; metrics are the tokens' branch."""
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    token_BT, row_BT = ratio.token_ratio(x), ratio.sequence_ratio(x)
    if mix == "entropy":
        share_BT = token_share(x, x.need("entropy_BT", "dhpo_proposed")).to(adv_BT.dtype)
    else:
        share_BT = torch.full_like(adv_BT, 0.5)
    by_token_BT = ratio.min_clip(token_BT, adv_BT, 1 - clip_low, 1 + clip_high)
    by_row_BT = ratio.min_clip(row_BT, adv_BT, 1 - row_clip_low, 1 + row_clip_high)
    metrics = ratio.clip_metrics(token_BT, adv_BT, x.mask_BT, 1 - clip_low, 1 + clip_high)
    return LossOutput(share_BT * by_token_BT + (1 - share_BT) * by_row_BT, metrics)
