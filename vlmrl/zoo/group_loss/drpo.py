"""DRPO: short right answers weigh more, and no right answer is ever pushed down. arXiv:2510.04474, with the authors' code.

Per question, with s the mean log-prob of an answer: maximise sum_right w_i s_i - tau log mean_wrong exp(s_j / tau), where w is the
softmax over the right answers of (1 - L_i / maximum) / lambda. `temper` is lambda: 0.1 as in the code, large values give `disco`.
Lengths are compared among right answers only; with a length reward in GRPO a long right answer can get a negative advantage. The trust
region is disco's: (beta / 2) * max(KL - delta, 0)^2 with KL(old || policy), tau 10, beta 1000, delta 1e-4. Questions without both labels
add nothing, but the mean is over all questions. Set `maximum` to the recipe's limit on new tokens. Ours: labels are the sign of the
advantage (0: ignored).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from vlmrl.algo.registries import group_loss
from vlmrl.algo.rules import names
from vlmrl.zoo.group_loss.labels import group_sum, log_mean_exp, penalty, sides


def _wants_all_questions(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    if "zero_variance" in names(stage, "filters"):
        yield "group_loss 'drpo' averages over all questions, those without signal too; remove filter 'zero_variance'"


@group_loss("drpo", paper="arXiv:2510.04474", needs=("kl_N", "tokens_N"), signs_only=True, refuses=_wants_all_questions)
def drpo(
    score_N: Tensor,
    advantage_N: Tensor,
    group_N: Tensor,
    kl_N: Tensor | None = None,
    tokens_N: Tensor | None = None,
    *,
    maximum: int = 8192,
    temper: float = 0.1,
    tau: float = 10.0,
    score: Literal["logL"] = "logL",
    divergence: Literal["kl", "low_variance"] = "kl",
    beta: float = 1000.0,
    delta: float = 1e-4,
) -> Tensor:
    """Minus the mean margin over questions, right answers weighted by their brevity, plus the constraint. All vectors [N], of a whole step.

    Raises:
        ValueError: no lengths; an argument that is not positive.
    """
    if min(maximum, temper, tau) <= 0:
        raise ValueError(f"group_loss 'drpo': maximum {maximum}, temper {temper} and tau {tau} must be positive")
    if tokens_N is None:
        raise ValueError("group_loss 'drpo': lengths decide the weights; give tokens_N")
    of = sides(score_N, advantage_N, group_N, tokens_N)
    score_N = torch.where(of.right_N | of.wrong_N, score_N, torch.zeros_like(score_N))
    brevity_N = (1 - tokens_N.to(score_N.dtype) / maximum) / temper
    # the softmax over the right answers of a group, by its log-mean-exp
    level = log_mean_exp(brevity_N, of.right_N, of.index_N, of.groups) + of.rights.clamp(min=1).log()
    weight_N = torch.where(of.right_N, (brevity_N - level[of.index_N]).clamp(max=0).exp(), torch.zeros_like(brevity_N))
    right = group_sum(weight_N * score_N, of.index_N, of.groups)
    wrong = tau * log_mean_exp(score_N / tau, of.wrong_N, of.index_N, of.groups)
    loss = -torch.where(of.both, right - wrong, torch.zeros_like(right)).sum() / max(of.groups, 1)
    constraint = penalty("drpo", kl_N, tokens_N, beta, delta)
    return loss if constraint is None else loss + constraint
