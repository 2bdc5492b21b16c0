"""S-GRPO's decay: of the answers along one thought, each right one earns half of what the right one before it earned. arXiv:2505.07686.

In the order of the places where thinking was ended, the whole thought last, the k-th right answer gets 2^-(k - 1) and wrong ones get 0. A
thought whose early answers are right already earns little for going on. With strategy `s_grpo_proposed` and advantage `dr_grpo`, as the
paper does not divide by the deviation. Right is a reward of `success_at` and more; answers that were not judged are passed over.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping


@reward_shaping("s_grpo_proposed", paper="arXiv:2505.07686", needs=("question_N",))
def s_grpo_proposed(rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, success_at: float = 0.5) -> Tensor:
    """1 for the earliest right answer along a thought, half as much for each later one, 0 for wrong ones."""
    k, question_N = column_index(x, reward), need(x, "question_N", "reward_shaping 's_grpo_proposed'")
    right_N = valid_N & (rewards_NK[:, k] >= success_at)
    order_N = torch.where(
        question_N == 0, torch.full_like(question_N, torch.iinfo(torch.int64).max), question_N
    )  # the whole thought is last
    earlier_NN = (x.group_N[:, None] == x.group_N[None, :]) & (order_N[None, :] < order_N[:, None]) & right_N[None, :]
    return with_column(rewards_NK, k, torch.where(right_N, 0.5 ** earlier_NN.sum(dim=1).double(), torch.zeros(len(right_N)).double()))
