"""DCPO: the policy is drawn to a warmer or cooler version of itself, so that its entropy stays near a target. arXiv:2601.12730, with the
authors' code.

With H the mean token entropy of the batch and H0 the target, T is `warmer` where H <= H0, else `cooler`; u = pi_T / pi is the ratio of the
token's probabilities, pi_T the softmax of the same logits over T. Then

    A' = (1 - a) A + a 1[r > 0.05] u,  a = b / (1 + b),  b = min(|H0 - H|, 0.1) / (share of rewards above 0.05)

The expectation of u under the policy is 1, so nothing is added on average; tokens that pi_T prefers gain, in answers that are right.

As in the code: 1.2 and 0.8, the bounds 0.1 and 0.05, and target 0.5 (0.25 is best in their table). Ours: H is over all ranks and the share
over the rows of this rank; without any reward above 0.05, where the code divides by 0, advantages stay; T multiplies the recipe's
temperature. It costs two forward passes without gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight

FARTHEST, RIGHT_ABOVE = 0.1, 0.05


@reweight("dcpo", paper="arXiv:2601.12730", needs=("tempered_NT", "batch_entropy_N"), per="token", moves_signs=True)
def dcpo(x: AdvantageInputs, adv_NT: Tensor, *, target: float = 0.5, warmer: float = 1.2, cooler: float = 0.8) -> Tensor:
    """Token advantages mixed with how much likelier the token is at another temperature, in right answers. [n, T]

    Raises:
        ValueError: a negative target, temperatures that do not lie on either side of 1, or no tempered log-probs.
    """
    if target < 0 or not 0 < cooler <= 1 <= warmer:
        raise ValueError(f"reweight 'dcpo': needs target {target} >= 0 and 0 < cooler {cooler} <= 1 <= warmer {warmer}")
    log_ratio_NT = need(x, "tempered_NT", "reweight 'dcpo'")[:, : adv_NT.shape[1]]
    entropy_N = need(x, "batch_entropy_N", "reweight 'dcpo'")
    right_N = x.valid_N & (x.reward_N > RIGHT_ABOVE)
    if not right_N.any():
        return adv_NT
    distance = min(abs(target - float(entropy_N[0])), FARTHEST) / (float(right_N.sum()) / float(x.valid_N.sum()))
    share = distance / (1 + distance)
    mixed_NT = (1 - share) * adv_NT + share * right_N[:, None] * log_ratio_NT.to(adv_NT.dtype).exp()
    return torch.where(x.valid_N[:, None], mixed_NT, adv_NT)
