"""Per-token estimators of KL(policy || reference) from samples of the policy. Schulman, "Approximating KL divergence" (2020).

d = logp - logp_ref, clamped to +-20. As losses their gradients differ: k1's is 0 in expectation, k2's is that of the reverse KL,
k3's that of the forward KL (score-function term ignored), that of `unbiased` the reverse KL's. `unbiased` takes the log-probs of the
policy that sampled the answers as a third argument; without them it takes that policy to be the current one. Its value is not
capped at 10 like k3's, because a cap turns the gradient around for tokens that the policy has given up.
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
    """Estimate the divergence by d: unbiased, useless as a loss.

    Returns:
        [B, T], in nats.
    """
    return _gap(logp_BT, logp_ref_BT)


@kl_estimator("k2", paper=_PAPER)
def k2(logp_BT: Tensor, logp_ref_BT: Tensor) -> Tensor:
    """Estimate the divergence by d squared over 2: biased to second order, right gradient.

    Returns:
        [B, T], in nats.
    """
    # k2 = d^2 / 2, whose gradient d * dlogp is that of the reverse KL
    return _gap(logp_BT, logp_ref_BT).square() / 2


@kl_estimator("k3", paper=_PAPER)
def k3(logp_BT: Tensor, logp_ref_BT: Tensor) -> Tensor:
    """Estimate the divergence by exp(-d) + d - 1, at most 10: unbiased and never negative; what GRPO uses.

    Returns:
        [B, T], in nats.
    """
    d_BT = _gap(logp_BT, logp_ref_BT)
    # expm1: near 0 the value is d squared over 2, which the difference of exp(-d) and 1 would drown in rounding in float32
    return (torch.expm1(-d_BT) + d_BT).clamp(max=10.0)


@kl_estimator("unbiased", paper="arXiv:2512.02556", needs=("logp_old_BT",))
def unbiased(logp_BT: Tensor, logp_ref_BT: Tensor, logp_old_BT: Tensor | None = None) -> Tensor:
    """Estimate by rho * k3 with the gradient through rho too: value and gradient of the reverse KL, also for answers of an older policy.

    Returns:
        [B, T], in nats.
    """
    d_BT = _gap(logp_BT, logp_ref_BT)
    # rho = pi / pi_old, 1 where no older policy is given
    old_BT = logp_BT.detach() if logp_old_BT is None else logp_old_BT
    rho_BT = (logp_BT - old_BT).clamp(-20.0, 20.0).exp().detach()
    value_BT = (rho_BT * (torch.expm1(-d_BT) + d_BT)).detach()
    # The derivative is rho * d. Autograd would add rho * k3 and rho * (1 - exp(-d)), which cancel to it: in float32 nothing is left.
    return value_BT + rho_BT * d_BT.detach() * (logp_BT - logp_BT.detach())
