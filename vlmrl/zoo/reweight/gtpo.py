"""GTPO: tokens that right and wrong answers share are not pushed down, and pushed up twice. arXiv:2508.03772, with the authors' code.

A conflict token stands at the same place in an answer of positive and in one of negative advantage, within their common beginning, or,
counted from the end, within their common end. Its weight is 0 where the advantage is negative and 2 where it is positive; all others weigh
1. `gtpo_entropy` is the other half: answers whose mean token entropy H is above `bound` (ln 2) get advantage 0, the others A - weight * H.
As in the code, answers are filtered only where the policy began below the bound: one that begins above would have no advantage left.

Ours: weights stay at 2 where the beginning and the end overlap (the code multiplies to 4); the code's division of the loss by the number
of conflict tokens is left out; where the policy began is its mean H in the stage's first step. Use an advantage without a deviation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight

TWICE = 2.0


def _places(of_N: Tensor) -> list[int]:
    return [int(n) for n in of_N.nonzero()[:, 0]]


def conflicts(ids_NT: Tensor, length_N: Tensor, group_N: Tensor, sign_N: Tensor) -> Tensor:
    """Tokens that an answer shares with one of the other sign at the beginning or the end, bool [N, T]."""
    out_NT = torch.zeros_like(ids_NT, dtype=torch.bool)
    rows = {n: ids_NT[n, : int(length_N[n])] for n in range(len(ids_NT))}
    for i in _places(sign_N > 0):
        for j in _places((sign_N < 0) & (group_N == group_N[i])):
            n = min(len(rows[i]), len(rows[j]))
            begin = int((rows[i][:n] == rows[j][:n]).long().cumprod(dim=0).sum())
            end = int((rows[i].flip(0)[:n] == rows[j].flip(0)[:n]).long().cumprod(dim=0).sum())
            for row in (i, j):
                out_NT[row, :begin] = True
                out_NT[row, len(rows[row]) - end : len(rows[row])] = True
    return out_NT


@reweight("gtpo", paper="arXiv:2508.03772", needs=("ids_NT",), per="token")
def gtpo(x: AdvantageInputs, adv_NT: Tensor) -> Tensor:
    """Token advantages times 0 or 2 where right and wrong answers of a group share the token, by the sign of the answer's. [n, T]"""
    ids_NT = need(x, "ids_NT", "reweight 'gtpo'")[:, : adv_NT.shape[1]]
    inside_NT = torch.arange(adv_NT.shape[1])[None, :] < x.length_N[:, None]
    sign_N = torch.where(inside_NT, adv_NT, torch.zeros_like(adv_NT)).sum(dim=1).sign()
    shared_NT = conflicts(ids_NT, x.length_N, x.group_N, sign_N)
    factor_N = torch.where(sign_N > 0, TWICE, 0.0).to(adv_NT.dtype)
    return torch.where(shared_NT, adv_NT * factor_N[:, None], adv_NT)


def mean_entropy(x: AdvantageInputs) -> Tensor:
    """Average the token entropies of each answer.

    Returns:
        [N] float64, in nats.
    """
    entropy_NT = need(x, "entropy_NT", "reweight 'gtpo_entropy'").double()
    inside_NT = torch.arange(entropy_NT.shape[1])[None, :] < x.length_N[:, None]
    return torch.where(inside_NT, entropy_NT, torch.zeros_like(entropy_NT)).sum(dim=1) / x.length_N.clamp(min=1)


def beginning(state: Mapping[str, Any], x: AdvantageInputs) -> dict[str, Any]:
    """Remember the mean entropy of the stage's first answers, in nats."""
    if "began" in state:
        return dict(state)
    sampled_N = x.valid_N & x.on_policy_N
    return {"began": float(mean_entropy(x)[sampled_N].mean())} if bool(sampled_N.any()) else {}


def _above_ln_2(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    """Pointed out: a bound above ln 2, which leaves in what the method is made to leave out."""
    bound = arguments.get("bound", math.log(2))
    if isinstance(bound, int | float) and bound > math.log(2) + 1e-9:
        text = f"reweight 'gtpo_entropy' leaves answers out above a mean entropy of {bound:g} nats, and its source above ln 2 (0.693)"
        yield f"{text}: answers in between train; lower bound, or look at touched/reweight.gtpo_entropy/zeroed in the log"


@reweight("gtpo_entropy", paper="arXiv:2508.03772", needs=("entropy_NT",), remembers=beginning, moves_signs=True, doubts=_above_ln_2)
def gtpo_entropy(x: AdvantageInputs, adv_N: Tensor, *, bound: float = math.log(2), weight: float = 0.1) -> Tensor:
    """Advantages less `weight` times the answer's mean token entropy; 0 where that is above `bound`, if the policy began below. [N]

    Raises:
        ValueError: a bound that is not positive, a negative weight, or no entropies.
    """
    if bound <= 0 or weight < 0:
        raise ValueError(f"reweight 'gtpo_entropy': needs bound {bound} > 0 and weight {weight} >= 0")
    mean_N = mean_entropy(x)
    # in the first step there is no memory yet: it is what began
    began = beginning(x.memory or {}, x).get("began", 0.0)
    kept_N = x.valid_N & (mean_N <= bound) if float(began) <= bound else x.valid_N
    return torch.where(kept_N, adv_N - weight * mean_N, torch.zeros_like(adv_N))
