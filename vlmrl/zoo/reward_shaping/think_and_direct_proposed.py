"""Answers that were asked for directly keep to a budget of tokens. After MiMo-VL-Miloco, arXiv:2512.17436.

For strategy `think_and_direct_proposed`: a direct answer (question 1 of its group) of more than `budget` tokens earns `share` of its
reward; all others keep theirs. Ours, as is the paper's reward form: in the paper the two modes are data of fine-tuning, and answers have no
budget.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping
from vlmrl.algo.rules import needs_strategy

NAME = "reward_shaping 'think_and_direct_proposed'"


@reward_shaping(
    "think_and_direct_proposed",
    paper="arXiv:2512.17436",
    needs=("question_N",),
    refuses=needs_strategy(NAME, "think_and_direct_proposed"),
)
def think_and_direct_proposed(
    rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, budget: int = 64, share: float = 0.5
) -> Tensor:
    """Direct answers that are longer than `budget` tokens earn `share` of what they earned.

    Raises:
        ValueError: no budget, a share outside [0, 1], or there is no such column.
    """
    if budget < 1 or not 0 <= share <= 1:
        raise ValueError(f"{NAME}: needs budget {budget} >= 1 and share {share} in [0, 1]")
    k = column_index(x, reward)
    long_N = (need(x, "question_N", NAME) == 1) & (x.length_N > budget)
    return with_column(rewards_NK, k, torch.where(long_N, share * rewards_NK[:, k], rewards_NK[:, k]))
