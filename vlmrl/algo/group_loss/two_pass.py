"""The exact gradient of a loss that compares rollouts, with micro-batches that may cut groups.

Such a loss depends on the weights only through small vectors: a score s_i and, for a constraint, a divergence k_i per rollout. So
(1) a forward of the whole step without gradient gives s and k of all ranks, (2) `pass_weights` gives a_i = dL/ds_i and b_i = dL/dk_i
by autograd on those vectors, (3) each micro-batch adds the gradient of `surrogate`, sum_i sg[a_i] * s_i + sg[b_i] * k_i. Sums over
micro-batches and ranks are the gradient of L by the chain rule; nothing is divided again. Both passes must see the same dropout.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs


class RowTerms(NamedTuple):
    """What a group loss sees of the rows of a micro-batch, with gradient."""

    score_B: Tensor
    kl_B: Tensor
    """Sum over the row's tokens of the divergence from the old policy."""
    tokens_B: Tensor
    """int64, tokens that train."""


class PassWeights(NamedTuple):
    """The loss, and its derivatives by the small vectors, all without gradient."""

    loss: Tensor
    score_N: Tensor
    kl_N: Tensor | None


def choice(loss: Callable[..., Tensor], name: str) -> str | None:
    """Read a keyword argument of a bound group loss (`score`, `divergence`), or its default; None where it has none."""
    parameter = inspect.signature(loss).parameters.get(name)
    return parameter.default if parameter is not None and isinstance(parameter.default, str) else None


def row_terms(x: LossInputs, *, score: str = "logL", divergence: str | None = "kl") -> RowTerms:
    """Compute what a group loss sees of each row. `score` is a name in `ratio.SCORES`; `divergence` is `kl`, `low_variance` or None.

    Returns:
        Score, divergence and length, [B] each.

    Raises:
        ValueError: an unknown name.
    """
    if score not in ratio.SCORES:
        raise ValueError(f"unknown score '{score}' (known: {', '.join(ratio.SCORES)})")
    log_BT = ratio.log_ratio(x)
    if divergence == "kl":
        # KL(old || new) from samples of the old policy: the mean of logp_old - logp
        kl_BT = -log_BT
    elif divergence == "low_variance":
        # the same with less variance and never negative: rho - 1 - log rho
        kl_BT = torch.expm1(log_BT) - log_BT
    elif divergence is None:
        kl_BT = torch.zeros_like(log_BT)
    else:
        raise ValueError(f"unknown divergence '{divergence}' (known: kl, low_variance)")
    return RowTerms(ratio.SCORES[score](x), ratio.row_sum(kl_BT, x.mask_BT), x.mask_BT.sum(dim=1))


def pass_weights(
    fn: Callable[..., Tensor],
    score_N: Tensor,
    advantage_N: Tensor,
    group_N: Tensor,
    kl_N: Tensor | None = None,
    tokens_N: Tensor | None = None,
) -> PassWeights:
    """Differentiate a bound group loss by the scores and divergences of a whole step.

    Returns:
        The loss, dL/ds_i [N] and dL/dk_i [N], without gradient.

    Raises:
        ValueError: a score or divergence that is not finite (its row is named), or vectors of different lengths.
    """
    lengths = [len(v) for v in (score_N, advantage_N, group_N, kl_N, tokens_N) if v is not None]
    if len(set(lengths)) > 1:
        raise ValueError(f"vectors of different lengths: {lengths}; all must have one entry per rollout of the step")
    for name, vector in (("score", score_N), ("kl", kl_N)):
        if vector is not None and not bool(vector.isfinite().all()):
            row = int((~vector.isfinite()).nonzero()[0])
            raise ValueError(f"{name} of rollout {row} is {float(vector[row])}; the group loss of the step would not be finite")
    with torch.enable_grad():
        # small vectors instead of the forward's graph: dL/ds_i and dL/dk_i are all that the second pass needs
        leaves: list[Any] = [None if v is None else v.detach().clone().requires_grad_() for v in (score_N, kl_N)]
        loss = fn(leaves[0], advantage_N.detach(), group_N, leaves[1], tokens_N)
        wanted = [leaf for leaf in leaves if leaf is not None]
        # A step without a single live group has a loss that does not depend on the scores at all.
        found = torch.autograd.grad(loss, wanted, allow_unused=True) if loss.requires_grad else [None] * len(wanted)
    grads = [torch.zeros_like(leaf) if grad is None else grad.detach() for leaf, grad in zip(wanted, found, strict=True)]
    return PassWeights(loss.detach(), grads[0], grads[1] if kl_N is not None else None)


def surrogate(terms: RowTerms, score_weight_B: Tensor, kl_weight_B: Tensor | None = None) -> Tensor:
    """Compute a number with this micro-batch's share of the step's gradient. Weights are those of its rows.

    Returns:
        Scalar, whose value means nothing.
    """
    # its gradient is sum_i dL/ds_i * ds_i/dtheta + dL/dk_i * dk_i/dtheta, the chain rule
    value = (score_weight_B.detach() * terms.score_B).sum()
    return value if kl_weight_B is None else value + (kl_weight_B.detach() * terms.kl_B).sum()
