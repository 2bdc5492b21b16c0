"""Information consistency: answers to other wordings of a question should say as much. After arXiv:2512.12858.

Helpfulness H of an answer is its mean token entropy, scaled by least and largest of the group to [0, 1]; stability F says how near it is
to those of the other wordings: F_i = 1 - mean over the answers j to other questions of |H_i - H_j|. The reward is

    r + helpful H + stable F

For strategy `paraphrases`. The paper's weights are not known: `helpful` 0.1 and `stable` 0.2 are ours, as is that F is an answer's own
(one number for the group would cancel in any comparison within it). An answer can raise its entropy without saying more, so watch it, or
set `helpful` to 0. A group with one question or one entropy, and what is unjudged, keeps its rewards.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping

NAME = "reward_shaping 'information_consistency_proposed'"


def mean_entropy(x: AdvantageInputs) -> Tensor:
    """Mean entropy of each response's tokens, float64 [N]."""
    entropy_NT = need(x, "entropy_NT", NAME).double()
    inside_NT = torch.arange(entropy_NT.shape[1])[None, :] < x.length_N[:, None]
    return torch.where(inside_NT, entropy_NT, torch.zeros_like(entropy_NT)).sum(dim=1) / x.length_N.clamp(min=1)


@reward_shaping("information_consistency_proposed", paper="arXiv:2512.12858", needs=("entropy_NT", "question_N"))
def information_consistency_proposed(
    rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, helpful: float = 0.1, stable: float = 0.2
) -> Tensor:
    """Add a bonus for much entropy, and one for as much of it as answers to the other wordings have.

    Raises:
        ValueError: a negative weight, or there is no such column.
    """
    if helpful < 0 or stable < 0:
        raise ValueError(f"{NAME}: helpful {helpful} and stable {stable} must not be negative")
    k = column_index(x, reward)
    judged_N = valid_N & ~rewards_NK[:, k].isnan()
    raw_N, question_N = mean_entropy(x), need(x, "question_N", NAME)
    low_N = segments.minimum(raw_N, x.group_N, judged_N)
    range_N = segments.maximum(raw_N, x.group_N, judged_N) - low_N
    scaled_N = torch.where(range_N > 0, (raw_N - low_N) / range_N.clamp(min=1e-300), torch.zeros_like(raw_N))
    other_NN = (x.group_N[:, None] == x.group_N[None, :]) & (question_N[:, None] != question_N[None, :]) & judged_N[None, :]
    gap_NN = torch.where(other_NN, (scaled_N[:, None] - scaled_N[None, :]).abs(), torch.zeros_like(raw_N)[:, None])
    stable_N = 1 - gap_NN.sum(dim=1) / other_NN.sum(dim=1).clamp(min=1)
    live_N = judged_N & (range_N > 0) & other_NN.any(dim=1)
    bonus_N = torch.where(live_N, helpful * scaled_N + stable * stable_N, torch.zeros_like(raw_N))
    return with_column(rewards_NK, k, rewards_NK[:, k] + bonus_N)
