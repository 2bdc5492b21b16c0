"""Losses of pairs of a better and a worse answer to the same question: `dpo`, `mpo_proposed`, `c3po_proposed`.

For stages of kind `preference` (rows with `meta.chosen` and `meta.rejected`) and, as what compares answers of unequal advantage, for
`group_loss` of a GRPO stage. With h = beta times the log-ratio of a whole answer to the reference (there the stage's starting weights,
in a GRPO stage the policy before the step), the mean over the pairs of the step of

    dpo            -log sigmoid(h+ - h-)                                                                 arXiv:2305.18290, eq. 7
    mpo_proposed   0.8 of that + 0.2 (-log sigmoid(h+ - d) - log sigmoid(d - h-)) + 1.0 (-log p(y+) / |y+|)    arXiv:2411.10442
    c3po_proposed  dpo, plus `imitate` times -log p(y) / |y| of the answers that have no partner         arXiv:2402.10893

`mpo_proposed` keeps a good answer likely in itself and not only likelier than its partner. `c3po_proposed` is for feedback in words that
must not be overdone: pairs where it holds, and the model's own answers where it does not, as rows without a rejected one.

Ours: d, in the paper the moving average of past h, is the mean of the step's h without gradient; the weights of C3PO's two kinds of
answers without a partner are one number, and it 0.1; log p is counted from the reference's, which changes the loss by a constant and no
gradient.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from vlmrl.algo.registries import group_loss

TIE = 1e-6
"""Advantages closer than this make no pair."""
Score = Literal["log_ratio_total", "log_ratio"]


def pairs_of(advantage_N: Tensor, group_N: Tensor, live_N: Tensor) -> Tensor:
    """Find the pairs of answers to one question of which the first is the better one.

    Returns:
        [N, N] bool.
    """
    # entry (i, j): i and j answer the same question, and i is the better one
    better_NN = (group_N[:, None] == group_N[None, :]) & (advantage_N[:, None] > advantage_N[None, :] + TIE)
    return better_NN & live_N[:, None] & live_N[None, :]


def mean_over(value: Tensor, where: Tensor) -> Tensor:
    """Average the values where `where`.

    Returns:
        Scalar; 0 without any.
    """
    return torch.where(where, value, torch.zeros_like(value)).sum() / where.sum().clamp(min=1)


def _prepared(score_N: Tensor, tokens_N: Tensor | None, method: str, beta: float) -> tuple[Tensor, Tensor]:
    """(h without what has no tokens, which rows have tokens)."""
    if beta <= 0:
        raise ValueError(f"group_loss '{method}': beta is {beta}; it must be above 0")
    live_N = torch.ones_like(score_N, dtype=torch.bool) if tokens_N is None else tokens_N > 0
    return torch.where(live_N, score_N, torch.zeros_like(score_N)), live_N


@group_loss("dpo", paper="arXiv:2305.18290", needs=("tokens_N",))
def dpo(
    score_N: Tensor,
    advantage_N: Tensor,
    group_N: Tensor,
    kl_N: Tensor | None = None,
    tokens_N: Tensor | None = None,
    *,
    beta: float = 0.1,
    score: Score = "log_ratio_total",
) -> Tensor:
    """Optimize preferences directly (DPO), over all pairs of the step. All vectors [N].

    Returns:
        Scalar: mean over the pairs, 0 without any.

    Raises:
        ValueError: beta not above 0.
    """
    score_N, live_N = _prepared(score_N, tokens_N, "dpo", beta)
    gap_NN = beta * (score_N[:, None] - score_N[None, :])
    # -log sigmoid(h+ - h-) = softplus(-(h+ - h-)), which does not overflow
    return mean_over(softplus(-gap_NN), pairs_of(advantage_N, group_N, live_N))


@group_loss("mpo_proposed", paper="arXiv:2411.10442", needs=("tokens_N",))
def mpo_proposed(
    score_N: Tensor,
    advantage_N: Tensor,
    group_N: Tensor,
    kl_N: Tensor | None = None,
    tokens_N: Tensor | None = None,
    *,
    beta: float = 0.1,
    preference: float = 0.8,
    quality: float = 0.2,
    generation: float = 1.0,
    score: Literal["log_ratio_total"] = "log_ratio_total",
) -> Tensor:
    """Mix three losses of preference (MPO): which answer is better, how good each is, and how to write the better one. All vectors [N].

    Returns:
        Scalar: mean over the pairs, 0 without any.

    Raises:
        ValueError: beta not above 0, a negative weight, or no `tokens_N`.
    """
    if min(preference, quality, generation) < 0:
        raise ValueError(
            f"group_loss 'mpo_proposed': preference {preference}, quality {quality}, generation {generation} must not be negative"
        )
    if tokens_N is None:
        raise ValueError("group_loss 'mpo_proposed' needs tokens_N, the number of tokens of each answer")
    score_N, live_N = _prepared(score_N, tokens_N, "mpo_proposed", beta)
    better_NN = pairs_of(advantage_N, group_N, live_N)
    h_N = beta * score_N
    paired_N = better_NN.any(dim=1) | better_NN.any(dim=0)
    # d, the threshold between good and bad answers: the mean h of all rows of a pair, each once
    middle = mean_over(h_N, paired_N).detach()
    # which is better: -log sigmoid(h+ - h-); below how good each is, and the likelihood of the better one per token
    each_NN = preference * softplus(h_N[None, :] - h_N[:, None])
    each_NN = each_NN + quality * (softplus(middle - h_N)[:, None] + softplus(h_N - middle)[None, :])
    each_NN = each_NN - generation * (score_N / tokens_N.clamp(min=1))[:, None]
    return mean_over(each_NN, better_NN)


@group_loss("c3po_proposed", paper="arXiv:2402.10893", needs=("tokens_N",))
def c3po_proposed(
    score_N: Tensor,
    advantage_N: Tensor,
    group_N: Tensor,
    kl_N: Tensor | None = None,
    tokens_N: Tensor | None = None,
    *,
    beta: float = 0.1,
    imitate: float = 0.1,
    score: Literal["log_ratio_total"] = "log_ratio_total",
) -> Tensor:
    """Apply DPO to pairs, and raise the likelihood of good answers without a partner. All vectors [N].

    Returns:
        Scalar: mean over the pairs, less `imitate` times the mean score per token of answers without a partner; 0 without either.

    Raises:
        ValueError: beta not above 0, a negative weight, or no `tokens_N`.
    """
    if imitate < 0:
        raise ValueError(f"group_loss 'c3po_proposed': imitate is {imitate}; it must not be negative")
    if tokens_N is None:
        raise ValueError("group_loss 'c3po_proposed' needs tokens_N, the number of tokens of each answer")
    score_N, live_N = _prepared(score_N, tokens_N, "c3po_proposed", beta)
    better_NN = pairs_of(advantage_N, group_N, live_N)
    # answers with advantage that are in no pair, neither as the better nor as the worse one
    alone_N = live_N & ~better_NN.any(dim=1) & ~better_NN.any(dim=0) & (advantage_N > 0)
    gap_NN = beta * (score_N[:, None] - score_N[None, :])
    return mean_over(softplus(-gap_NN), better_NN) - imitate * mean_over(score_N / tokens_N.clamp(min=1), alone_N)
