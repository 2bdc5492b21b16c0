"""E-GRPO: wrong answers that name more of what the question is about earn a part. arXiv:2510.24694.

r = 1 for a right answer, alpha * gamma_i / max_g gamma for a wrong one, with gamma the share of the known entities (objects, cells of a
table, boxes of evidence) that the reasoning names, and the maximum over all rollouts of the group; alpha 0.3. While alpha is below 1
every wrong answer stays below every right one.

`matched` is the reward column of gamma (give it weight 0); right is an accuracy of 0.5 and more. Ours: a group in which nobody named
anything, and a rollout whose gamma was not judged, keep their accuracy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, with_column
from vlmrl.algo.registries import reward_shaping

RIGHT = 0.5


@reward_shaping("e_grpo", paper="arXiv:2510.24694")
def e_grpo(rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, matched: str, alpha: float = 0.3) -> Tensor:
    """Give wrong answers `alpha` times their share of matched entities, relative to the best of the group.

    Raises:
        ValueError: alpha outside [0, 1).
    """
    if not 0 <= alpha < 1:
        raise ValueError(f"reward_shaping 'e_grpo': alpha is {alpha}; it must be in [0, 1), so that right answers stay above wrong ones")
    k, share_N = column_index(x, reward), rewards_NK[:, column_index(x, matched)].double()
    accuracy_N = rewards_NK[:, k].double()
    judged_N = valid_N & ~accuracy_N.isnan() & ~share_N.isnan()
    best_N = segments.maximum(share_N, x.group_N, judged_N)
    partial_N = judged_N & (accuracy_N < RIGHT) & (best_N > 0)
    return with_column(rewards_NK, k, torch.where(partial_N, alpha * share_N / best_N.clamp(min=1e-300), accuracy_N))
