"""Multiply one reward column by another: the terms of the combiners that Faithful GRPO is compared with. arXiv:2604.08476.

    additive:       1/3 acc + 1/3 acc * R_C + 1/3 fmt * R_G
    multiplicative:           1/2 acc * R_C + 1/2 fmt * R_G

Each product is one shape, with the weights of the sum in `rewards`; a column that only serves as a factor has weight 0. Several shapes
on one column multiply it by several factors. Where the factor judged nothing (NaN) the column stays as it is: consistency is judged
of right answers only, and a wrong one has nothing to multiply anyway. A column that was not judged itself stays missing.

Ours: the treatment of what is missing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, with_column
from vlmrl.algo.registries import reward_shaping


@reward_shaping("product", paper="arXiv:2604.08476")
def product(rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, factor: str) -> Tensor:
    """Multiply the column `reward` by the column `factor`.

    Returns:
        Rewards [N, K].

    Raises:
        ValueError: there is no such column.
    """
    k = column_index(x, reward)
    factor_N = rewards_NK[:, column_index(x, factor)]
    return with_column(rewards_NK, k, rewards_NK[:, k] * torch.where(factor_N.isnan(), torch.ones_like(factor_N), factor_N))
