"""REAL: rewards are labels, and the policy's log-ratios are logits. arXiv:2602.05630, as ms-swift has it.

Per question, with s_i the mean log-ratio of an answer's tokens to the policy before the step,

    L = log(1 + sum_wrong exp(s_j / tau)) + log(1 + sum_right exp(-s_i / tau))

the multi-label softmax with an anchor at 0, averaged over questions. A right answer that is already likely gets less, a wrong one that
is still likely gets more, each at most 1 / tau. `form: bce` is the mean over a question's answers of softplus(-+ s / tau). tau only
scales the step early on: use 1 and tune the learning rate (ms-swift has 0.5).

Ours: labels are the sign of the advantage, so a question whose answers all earn the same has none; the mean of `bce`, which the abstract
names without a formula.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo.registries import group_loss
from vlmrl.zoo.group_loss.labels import Sides, group_sum, log_mean_exp, sides


def _anchored(logit_N: Tensor, of_N: Tensor, count: Tensor, of: Sides) -> Tensor:
    """log(1 + sum exp) over some members of each group; 0 for a group without any. [groups]"""
    total = log_mean_exp(logit_N, of_N, of.index_N, of.groups) + count.clamp(min=1).log()
    return torch.where(count > 0, torch.nn.functional.softplus(total), torch.zeros_like(total))


@group_loss("real", paper="arXiv:2602.05630", signs_only=True)
def real(
    score_N: Tensor,
    advantage_N: Tensor,
    group_N: Tensor,
    kl_N: Tensor | None = None,
    tokens_N: Tensor | None = None,
    *,
    tau: float = 1.0,
    form: Literal["softmax", "bce"] = "softmax",
    score: Literal["log_ratio"] = "log_ratio",
) -> Tensor:
    """Classification loss of answers by their log-ratio, averaged over the questions that have labels. All vectors [N], of a whole step.

    Raises:
        ValueError: tau not above 0.
    """
    if tau <= 0:
        raise ValueError(f"group_loss 'real': tau is {tau}; it must be above 0")
    of = sides(score_N, advantage_N, group_N, tokens_N)
    labelled_N = of.right_N | of.wrong_N
    logit_N = torch.where(labelled_N, score_N, torch.zeros_like(score_N)) / tau
    if form == "bce":
        signed_N = torch.where(of.right_N, -logit_N, logit_N)
        each_N = torch.where(labelled_N, torch.nn.functional.softplus(signed_N), torch.zeros_like(logit_N))
        loss = group_sum(each_N, of.index_N, of.groups) / (of.rights + of.wrongs).clamp(min=1)
    else:
        loss = _anchored(logit_N, of.wrong_N, of.wrongs, of) + _anchored(-logit_N, of.right_N, of.rights, of)
    return loss.sum() / ((of.rights + of.wrongs) > 0).sum().clamp(min=1)
