"""Per-token estimators of KL(policy || reference) from samples of the policy. Schulman, "Approximating KL divergence" (2020).

d = logp - logp_ref, clamped to +-20. As losses their gradients differ: k1's is 0 in expectation, k2's is that of the reverse KL,
k3's that of the forward KL (score-function term ignored).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.registries import kl_estimator

_PAPER = "Schulman 2020, Approximating KL divergence"


def _gap(logp_BT: Tensor, logp_ref_BT: Tensor) -> Tensor:
    return (logp_BT - logp_ref_BT).clamp(-20.0, 20.0)


@kl_estimator("k1", paper=_PAPER)
def k1(logp_BT: Tensor, logp_ref_BT: Tensor) -> Tensor:
    """d: unbiased, useless as a loss."""
    return _gap(logp_BT, logp_ref_BT)


@kl_estimator("k2", paper=_PAPER)
def k2(logp_BT: Tensor, logp_ref_BT: Tensor) -> Tensor:
    """d squared over 2: biased to second order, right gradient."""
    return _gap(logp_BT, logp_ref_BT).square() / 2


@kl_estimator("k3", paper=_PAPER)
def k3(logp_BT: Tensor, logp_ref_BT: Tensor) -> Tensor:
    """exp(-d) + d - 1, at most 10: unbiased and never negative; what GRPO uses."""
    d_BT = _gap(logp_BT, logp_ref_BT)
    # expm1: near 0 the value is d squared over 2, which the difference of exp(-d) and 1 would drown in rounding in float32
    return (torch.expm1(-d_BT) + d_BT).clamp(max=10.0)
