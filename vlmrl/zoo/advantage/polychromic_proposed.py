"""Polychromic objective: sets of rollouts are rewarded for being right and unlike each other. After arXiv:2509.25424.

f(S) = mean of the rewards of a set S of n rollouts, times its diversity d(S), the share of different answers in it. All members of a set
get the same advantage f(S) - b, b the mean of f over the sets that were sampled. A set of equal right answers is worth 1/n.

Ours: the paper reaches many rollouts of a state by resetting to it, in games; here the sets are all n-subsets of a prompt's judged
rollouts, and a rollout's advantage is the mean over the sets that it is in, so nothing is drawn. The answers are the parsed ones, and what
could not be parsed is an answer of its own. Sets have at most one member less than the group, so that they can be compared; of one
member the method is the reward less its mean. For rewards in [0, 1]; a group with more than `MOST` sets is refused.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage
from vlmrl.algo.segments import FLAT

MOST = 100_000


def set_scores(reward_n: Tensor, answer_n: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """(members [S, size], f [S]) of all sets of `size` of n rollouts."""
    members_Sk = torch.combinations(torch.arange(len(reward_n)), size)
    answers_Sk = answer_n[members_Sk]
    same_Skk = answers_Sk[:, :, None] == answers_Sk[:, None, :]
    different_S = (1 / same_Skk.double().sum(dim=2)).sum(dim=1)
    return members_Sk, reward_n[members_Sk].mean(dim=1) * different_S / size


@advantage("polychromic_proposed", paper="arXiv:2509.25424", needs=("answer_N",), baseline="set", moves_signs=True)
def polychromic_proposed(x: AdvantageInputs, *, size: int = 4) -> Tensor:
    """Mean over the sets with the rollout of reward times diversity, minus that of all sets.

    Raises:
        ValueError: a size below 1, no clusters of answers, or more sets than can be looked at.
    """
    if size < 1:
        raise ValueError(f"advantage 'polychromic_proposed': size is {size}, must be at least 1")
    answer_N = need(x, "answer_N", "advantage 'polychromic_proposed'")
    out_N = torch.zeros(x.valid_N.shape, dtype=torch.float64)
    for one in sorted({int(i) for i in x.group_N[x.valid_N]}):
        place_n = (x.valid_N & (x.group_N == one)).nonzero()[:, 0]
        n = len(place_n)
        if n < 2:
            continue
        k = min(size, n - 1)
        if math.comb(n, k) > MOST:
            raise ValueError(
                f"advantage 'polychromic_proposed': {n} rollouts have {math.comb(n, k)} sets of {k}; at most {MOST} are looked at"
            )
        answer_n = answer_N[place_n]
        own_n = torch.where(answer_n < 0, -1 - torch.arange(n), answer_n)
        members_Sk, score_S = set_scores(x.reward_N[place_n].detach().double(), own_n, k)
        if float(score_S.max() - score_S.min()) <= FLAT * max(1.0, float(score_S.abs().max())):
            continue
        total_n = torch.zeros(n, dtype=torch.float64).index_add(0, members_Sk.flatten(), score_S.repeat_interleave(k))
        out_N[place_n] = total_n / math.comb(n - 1, k - 1) - score_S.mean()
    return out_N
