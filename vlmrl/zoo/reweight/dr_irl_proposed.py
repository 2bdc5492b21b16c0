"""DR-IRL's scale of rewards: answers unlike the demonstration, and groups that a reward model tells apart, weigh more. After
arXiv:2503.18991.

    A'_i = D_i M A_i,  D_i = sigmoid(1 - W_i) / sigmoid(mean_g (1 - W)),  M = sigmoid(mean of gaps without outliers) / sigmoid(mean of gaps)

W_i in [0, 1] is how well the answer's clauses match those of the demonstration, a gap how much more a reward model gives to the
demonstration than to an answer; a gap is an outlier where (gap - mean)^2 > tau. Both factors are above 0, so signs stay.

`similarity` and `gap` name the reward columns of W and of the gaps (of weight 0). W can be the reward `demonstration_match_proposed`.
Without `gap` M is 1. Ours: tau 1 (the paper's is not known); gaps are those of a group; where every gap is an outlier M is 1; an answer
without W has D 1 and does not enter the mean. The direction is that of the formula, more weight for what is less alike; one summary of
the paper says the opposite in words. Not there: its reward models of categories, learned from demonstrations by inverse RL; give one as
the reward `reward_model`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index
from vlmrl.algo.registries import reweight

NAME = "reweight 'dr_irl_proposed'"


def difficulty(like_N: Tensor, group_N: Tensor, valid_N: Tensor) -> Tensor:
    """D of each answer; 1 where its similarity is not known. [N]"""
    judged_N = valid_N & ~like_N.isnan()
    apart_N = torch.where(judged_N, 1 - like_N, torch.zeros_like(like_N))
    mean_N = segments.mean(apart_N, group_N, judged_N)
    return torch.where(judged_N, apart_N.sigmoid() / mean_N.sigmoid(), torch.ones_like(apart_N))


def responsiveness(gap_N: Tensor, group_N: Tensor, valid_N: Tensor, tau: float) -> Tensor:
    """M of each answer's group. [N]"""
    judged_N = valid_N & ~gap_N.isnan()
    gap_N = torch.where(judged_N, gap_N, torch.zeros_like(gap_N))
    mean_N = segments.mean(gap_N, group_N, judged_N)
    near_N = judged_N & ((gap_N - mean_N) ** 2 <= tau)
    some_N = segments.count(group_N, near_N) > 0
    ratio_N = segments.mean(gap_N, group_N, near_N).sigmoid() / mean_N.sigmoid()
    return torch.where(some_N, ratio_N, torch.ones_like(ratio_N))


@reweight("dr_irl_proposed", paper="arXiv:2503.18991")
def dr_irl_proposed(x: AdvantageInputs, adv_N: Tensor, *, similarity: str, gap: str = "", tau: float = 1.0) -> Tensor:
    """Advantages times how unlike the demonstration the answer is, and times how well its group's gaps hold together. [N]

    Raises:
        ValueError: a negative tau, or a column that is not there.
    """
    if tau < 0:
        raise ValueError(f"{NAME}: tau is {tau}; it must not be negative")
    factor_N = difficulty(x.rewards_NK[:, column_index(x, similarity, NAME)].double(), x.group_N, x.valid_N)
    if gap:
        factor_N = factor_N * responsiveness(x.rewards_NK[:, column_index(x, gap, NAME)].double(), x.group_N, x.valid_N, tau)
    return torch.where(x.valid_N, adv_N * factor_N.to(adv_N.dtype), adv_N)
