"""SRPO: failed answers with a solved sibling are routed to self-distillation, all others to GRPO. After "Unifying Group-Relative and
Self-Distillation Policy Optimization via Sample Routing", arXiv:2604.02288.

The teacher is the policy itself under a prompt that holds the group's best right answer. The tokens of a routed answer get, in the place of
their advantage,

    c w_t (log teacher(y_t) - log policy(y_t)),  w_t = exp(-beta H_t), scaled to mean 1 over all routed tokens,

with H_t the teacher's entropy: what makes the gradient that of the reverse KL to the teacher, by the sampled token, stronger where the
teacher is sure. A failed answer without a solved sibling stays with GRPO.

From re-implementations: the router, the weights and beta 1. Ours: the sampled-token form of the divergence (there also one over the
likeliest tokens), the teacher's weights are the policy's before the step, c 1, and log-ratios are bounded to 5 either way. A right
answer is a reward of `success_at` and more. Two forward passes without gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight

NAME = "reweight 'srpo_proposed'"
MOST = 5.0


def sure_weights(entropy_NT: Tensor, counted_NT: Tensor, beta: float) -> Tensor:
    """exp(-beta H), over its mean over the counted tokens; 0 elsewhere. [n, T]"""
    raw_NT = torch.where(counted_NT, (-beta * entropy_NT).exp(), torch.zeros_like(entropy_NT))
    return raw_NT / (raw_NT.sum() / counted_NT.sum().clamp(min=1)).clamp(min=1e-30)


@reweight(
    "srpo_proposed",
    paper="arXiv:2604.02288",
    needs=("sibling_logp_NT", "sibling_entropy_NT", "routed_N", "logp_NT"),
    per="token",
    moves_signs=True,
)
def srpo_proposed(x: AdvantageInputs, adv_NT: Tensor, *, success_at: float = 0.5, beta: float = 1.0, coefficient: float = 1.0) -> Tensor:
    """Token advantages, in failed answers with a solved sibling those of distillation from the policy that has seen it. [n, T]

    Raises:
        ValueError: a negative beta or coefficient, or what it needs is not there.
    """
    if beta < 0 or coefficient < 0:
        raise ValueError(f"{NAME}: beta {beta} and coefficient {coefficient} must not be negative")
    width = adv_NT.shape[1]
    routed_N = need(x, "routed_N", NAME) & x.valid_N
    counted_NT = routed_N[:, None] & (torch.arange(width)[None, :] < x.length_N[:, None])
    gap_NT = (need(x, "sibling_logp_NT", NAME) - need(x, "logp_NT", NAME))[:, :width].clamp(-MOST, MOST)
    weight_NT = sure_weights(need(x, "sibling_entropy_NT", NAME)[:, :width], counted_NT, beta)
    return torch.where(counted_NT, (coefficient * weight_NT * gap_NT).to(adv_NT.dtype), adv_NT)
