"""PAPO's two terms: the policy must be another one where it cannot see, and stay sharp. arXiv:2507.06448, with the authors' code.

    J = J_GRPO + gamma D[pi || pi_mask] - eta H[pi] - eta H[pi_mask]

pi_mask is the policy where a share of the picture's patches is black, both at the sampled tokens: D is exp(d) - d - 1 with
d = log pi_mask - log pi (within +-20, at most 10), H is -log pi and -log pi_mask. As a loss, with weight 1:

    -gamma D + eta (-log pi) + eta (-log pi_mask)

gamma is 0.01 (`divergence`; the paper has 0.02 for 3B with GRPO), eta 0.03 (`entropy`), the patches are 14 pixels, 0.6 of them black.

As in the authors' code by default, log pi_mask is a constant: the last term has no gradient, and D moves the policy that sees, by
1 - pi_mask/pi times the gradient of log pi. That of H is 0 in expectation at the first update of a step, like that of any sum of log-probs
of samples. The paper's formula differentiates pi_mask too; that has no significant effect by the authors' README, and is not here.

Ours: log pi_mask is of the weights before each update, in the code before those of a step; rows without media have the entropy only.
"""

from __future__ import annotations

import torch

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import auxiliary_loss
from vlmrl.zoo.masked import MOST


@auxiliary_loss("papo", paper="arXiv:2507.06448", needs=("masked_logp_BT",))
def papo(x: LossInputs, *, divergence: float = 0.01, entropy: float = 0.03, patch: int = 14, share: float = 0.6) -> LossOutput:
    """Minus the divergence from the policy that sees masked media, and the entropies of both, at the sampled tokens. [B, T]

    Raises:
        ValueError: a negative weight, a patch below 1, a share outside [0, 1], or no log-probs under masked media.
    """
    if divergence < 0 or entropy < 0 or patch < 1 or not 0 <= share <= 1:
        given = f"divergence {divergence}, entropy {entropy}, patch {patch}, share {share}"
        raise ValueError(
            f"auxiliary_loss 'papo': {given}; needs weights that are not negative, a patch of at least 1 and a share in [0, 1]"
        )
    masked_BT = x.need("masked_logp_BT", "papo").detach()
    shown_BT = x.mask_BT & masked_BT.isfinite()
    logp_BT, masked_BT = ratio.inside(x.logp_BT, x.mask_BT), ratio.inside(masked_BT, shown_BT)
    d_BT = ratio.inside(masked_BT - logp_BT, shown_BT).clamp(-ratio.MAX_LOG_RATIO, ratio.MAX_LOG_RATIO)
    apart_BT = (torch.expm1(d_BT) - d_BT).clamp(max=MOST)
    loss_BT = -divergence * apart_BT - entropy * (logp_BT + masked_BT)
    count = shown_BT.sum()
    metrics = {"divergence": (apart_BT.detach().sum(), count), "masked_entropy": (-masked_BT.sum(), count)}
    return LossOutput(loss_BT, metrics)
