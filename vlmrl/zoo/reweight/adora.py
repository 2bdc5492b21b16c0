"""ADORA: prompts whose right answers are not longer than their wrong ones weigh less. arXiv:2602.10019, the authors' vision-language code.

A prompt is advantageous if the longest right answer is longer than the mean wrong one; the advantages of the others are multiplied by
`weight`, 0.1. Wrong answers that were cut off do not count. Without a right answer the weight is 1, without a wrong one that counts it is
`weight` (as in the code). Right is a reward above 0.5, of `reward` where one is named.

Ours: cut off is what the engine says, not a number of tokens; `prefer: shorter` turns the comparison around, for tasks with short
answers (the shortest right one against the mean). The method rewards long answers by construction: look at the lengths.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index
from vlmrl.algo.registries import reweight

RIGHT = 0.5


def advantageous(x: AdvantageInputs, score_N: Tensor, *, prefer: Literal["longer", "shorter"]) -> Tensor:
    """Whether the prompt of each rollout keeps its weight, bool [N]."""
    judged_N = x.valid_N & ~score_N.isnan()
    right_N = judged_N & (score_N > RIGHT)
    wrong_N = judged_N & ~right_N
    if "truncated_N" in x.provided:
        wrong_N = wrong_N & ~x.provided["truncated_N"]
    sign = 1.0 if prefer == "longer" else -1.0
    length_N = sign * x.length_N.double()
    top_N, mean_N = segments.maximum(length_N, x.group_N, right_N), segments.mean(length_N, x.group_N, wrong_N)
    rights_N, wrongs_N = segments.count(x.group_N, right_N), segments.count(x.group_N, wrong_N)
    return (rights_N == 0) | ((wrongs_N > 0) & (top_N > mean_N))


@reweight("adora", paper="arXiv:2602.10019", needs=("truncated_N",))
def adora(
    x: AdvantageInputs, adv_N: Tensor, *, weight: float = 0.1, prefer: Literal["longer", "shorter"] = "longer", reward: str | None = None
) -> Tensor:
    """Advantages of prompts whose right answers are not longer than their wrong ones, times `weight`. [N]

    Raises:
        ValueError: a negative weight, or no such reward.
    """
    if weight < 0:
        raise ValueError(f"reweight 'adora': weight is {weight}; it must not be negative")
    score_N = x.reward_N if reward is None else x.rewards_NK[:, column_index(x, reward, "reweight 'adora'")]
    return torch.where(advantageous(x, score_N, prefer=prefer), adv_N, adv_N * weight)
