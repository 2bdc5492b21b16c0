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
from typing import Any, Literal

import torch
from torch import Tensor

from vlmrl.algo.registries import group_loss
from vlmrl.algo.rules import names
from vlmrl.zoo.group_loss.labels import group_sum, log_mean_exp, penalty, sides

TAU = {"logL": 10.0, "ratio": 1.0}


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
    of = sides(score_N, advantage_N, group_N, tokens_N)
    score_N = torch.where(of.right_N | of.wrong_N, score_N, torch.zeros_like(score_N))
    right = group_sum(score_N * of.right_N, of.index_N, of.groups) / of.rights.clamp(min=1)
    if hard_negatives:
        wrong = scale * log_mean_exp(score_N / scale, of.wrong_N, of.index_N, of.groups)
    else:
        wrong = group_sum(score_N * of.wrong_N, of.index_N, of.groups) / of.wrongs.clamp(min=1)
    loss = -torch.where(of.both, right - wrong, torch.zeros_like(right)).sum() / max(of.groups, 1)
    constraint = penalty("disco", kl_N, tokens_N, beta, delta)
    return loss if constraint is None else loss + constraint
