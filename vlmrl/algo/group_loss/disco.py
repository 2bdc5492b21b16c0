"""DisCO: tell right answers from wrong ones by a score, within a trust region. arXiv:2505.12366 and the authors' code.

Per question J = mean_right s - tau * log mean_wrong exp(s / tau): hard negatives, the wrong answers with a high score, weigh more.
`hard_negatives=False` is DisCO-b, J = mean_right s - mean_wrong s, the limit of tau -> infinity. Whatever the pass rate, the positive
weight of a question is 1. Questions without both labels add nothing, but the mean is over all questions of `group`, so do not drop
them by selection before. Scores (`algo.ratio.SCORES`): `logL`, the mean log-prob, and `ratio`, the mean ratio, not clipped.
Constraint: (beta / 2) * max(KL - delta, 0)^2, KL the mean over all tokens; exactly 0 below delta. `divergence` is the token's KL(old
|| policy): `kl`, logp_old - logp (right in value and gradient), or `low_variance`, rho - 1 - log rho.
Defaults: tau 10 for `logL` and 1 for `ratio`, beta 1000, delta 1e-4. Not copied: in the authors' code the loss value of the
log-mean-exp is wrong (its gradient is right), and the ratio variant calls the DisCO-b function.
Ours: labels are the sign of the advantage (0: unjudged, ignored), so graded rewards split at the group's baseline; the penalty is
written as a square, whose gradient is the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor

from vlmrl.algo.registries import group_loss
from vlmrl.algo.rules import names

TAU = {"logL": 10.0, "ratio": 1.0}


def _group_sum(value_N: Tensor, index_N: Tensor, groups: int) -> Tensor:
    return torch.zeros(groups, dtype=value_N.dtype, device=value_N.device).index_add(0, index_N, value_N)


def _log_mean_exp(value_N: Tensor, of_N: Tensor, index_N: Tensor, groups: int) -> Tensor:
    """log mean exp over the members `of_N` of each group; 0 for a group without any. [groups]"""
    low = torch.full((groups,), float("-inf"), dtype=value_N.dtype, device=value_N.device)
    top = low.scatter_reduce(0, index_N[of_N], value_N.detach()[of_N], "amax")
    top = torch.where(top.isfinite(), top, torch.zeros_like(top))
    shifted_N = torch.where(of_N, value_N - top[index_N], torch.zeros_like(value_N)).exp() * of_N
    count = _group_sum(of_N.to(value_N.dtype), index_N, groups)
    total = torch.where(count > 0, _group_sum(shifted_N, index_N, groups), torch.ones_like(count))
    return total.log() - count.clamp(min=1).log() + top


def _penalty(kl_N: Tensor | None, tokens_N: Tensor | None, beta: float, delta: float) -> Tensor | None:
    if beta == 0:
        return None
    if kl_N is None or tokens_N is None:
        raise ValueError("group_loss 'disco': the constraint needs kl_N and tokens_N; give both, or set beta to 0")
    divergence = torch.where(tokens_N > 0, kl_N, torch.zeros_like(kl_N)).sum() / tokens_N.sum().clamp(min=1)
    return beta / 2 * (divergence - delta).clamp(min=0).square()


def _wants_all_questions(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    if "zero_variance" in names(stage, "filters"):
        yield "group_loss 'disco' averages over all questions, those without signal too; remove filter 'zero_variance'"


@group_loss("disco", paper="arXiv:2505.12366", needs=("kl_N", "tokens_N"), signs_only=True, refuses=_wants_all_questions)
def disco(
    score_N: Tensor,
    advantage_N: Tensor,
    group_N: Tensor,
    kl_N: Tensor | None = None,
    tokens_N: Tensor | None = None,
    *,
    score: Literal["logL", "ratio"] = "logL",
    tau: float | None = None,
    hard_negatives: bool = True,
    divergence: Literal["kl", "low_variance"] = "kl",
    beta: float = 1000.0,
    delta: float = 1e-4,
) -> Tensor:
    """Minus the mean margin over questions, plus the constraint. All vectors [N], of a whole step over all ranks.

    `kl_N` is the sum over each row's tokens of the `divergence` and `tokens_N` their number; `score` and `divergence` say what the
    caller has to compute (see `two_pass.choice`), here they only set the default of tau. Rows without tokens enter nothing.

    Raises:
        ValueError: a constraint without `kl_N` and `tokens_N`; tau not above 0.
    """
    scale = TAU[score] if tau is None else tau
    if scale <= 0:
        raise ValueError(f"group_loss 'disco': tau is {scale}; it must be above 0")
    # torch.unique has no types of its own
    unique, index_N = cast("tuple[Tensor, Tensor]", torch.unique(group_N, return_inverse=True))  # pyright: ignore[reportUnknownMemberType]
    groups = unique.numel()
    live_N = torch.ones_like(advantage_N, dtype=torch.bool) if tokens_N is None else tokens_N > 0
    right_N, wrong_N = live_N & (advantage_N > 0), live_N & (advantage_N < 0)
    score_N = torch.where(right_N | wrong_N, score_N, torch.zeros_like(score_N))
    rights, wrongs = (_group_sum(of_N.to(score_N.dtype), index_N, groups) for of_N in (right_N, wrong_N))
    right = _group_sum(score_N * right_N, index_N, groups) / rights.clamp(min=1)
    if hard_negatives:
        wrong = scale * _log_mean_exp(score_N / scale, wrong_N, index_N, groups)
    else:
        wrong = _group_sum(score_N * wrong_N, index_N, groups) / wrongs.clamp(min=1)
    both = (rights > 0) & (wrongs > 0)
    loss = -torch.where(both, right - wrong, torch.zeros_like(right)).sum() / max(groups, 1)
    penalty = _penalty(kl_N, tokens_N, beta, delta)
    return loss if penalty is None else loss + penalty
