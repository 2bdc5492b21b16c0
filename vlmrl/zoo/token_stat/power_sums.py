"""Sums of powers of the probabilities of all tokens, as logs: of p^2 (minus the collision entropy) and of p^3.

With z the logits over the temperature, sum p^k is Z(k z) / Z(z)^k. What CAPO (arXiv:2510.00819) needs of a distribution.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo.needs import token_stat


@token_stat("log_p2")
def log_p2(logp_MV: Tensor) -> Tensor:
    """Log of the sum of p^2."""
    return (2 * logp_MV).logsumexp(1)


@token_stat("log_p3")
def log_p3(logp_MV: Tensor) -> Tensor:
    """Log of the sum of p^3."""
    return (3 * logp_MV).logsumexp(1)
