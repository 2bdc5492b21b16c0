"""COPO: groups whose answers agree learn from a comparison of prompts. arXiv:2508.04138, with the authors' code.

local: GRPO's z-score. global: P_g = mean_g r times (1 - lambda H_g), z-scored over the prompts of the batch; H_g is the entropy in bits
of the group's parsed answers and lambda = (1 - 1/G) / log2 G, so that the factor is at least 1/G. A = w local + (1 - w) global with
w = sigmoid(k (H_g - b)), k 20 and b 0.5 as in the authors' scripts. A unanimous group thus learns from whether its prompt went better
than the others: right ones are pushed up and wrong ones down, where GRPO has nothing.

Ours: the authors blend two clipped losses, here the advantages are blended, which is the same while the ratio is 1; answers that
could not be parsed are one class of their own; G = 1 has lambda 0; prompts that are equal up to rounding have global advantage 0.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage
from vlmrl.zoo.advantage.seed_grpo import count_entropy


@advantage(
    "copo", paper="arXiv:2508.04138", needs=("answer_N",), baseline="batch", scale="deviation", uses_flat_groups=True, moves_signs=True
)
def copo(
    x: AdvantageInputs, *, k: float = 20.0, b: float = 0.5, consistency: bool = True, epsilon: float = 1e-4, ddof: Literal[0, 1] = 1
) -> Tensor:
    """GRPO where the answers of a group disagree, a comparison of prompts where they agree. `consistency`: damp P_g by H_g."""
    answer_N = need(x, "answer_N", "advantage 'copo'")
    groups = sorted({int(i) for i in x.group_N[x.valid_N]})
    worth = torch.zeros(len(groups), dtype=torch.float64)
    entropy = torch.zeros(len(groups), dtype=torch.float64)
    for place, one in enumerate(groups):
        member_N = x.valid_N & (x.group_N == one)
        n = int(member_N.sum())
        bits = count_entropy(answer_N[member_N].clamp(min=-1)) / math.log(2)
        damping = (1 - 1 / n) / math.log2(n) * bits if n > 1 and consistency else 0.0
        entropy[place] = bits
        worth[place] = x.reward_N[member_N].double().mean() * (1 - damping)
    batch, all_of_them = torch.zeros(len(groups), dtype=torch.int64), torch.ones(len(groups), dtype=torch.bool)
    centred = worth - segments.mean(worth, batch, all_of_them)
    above = centred / (segments.std(worth, batch, all_of_them, ddof=ddof) + epsilon)
    above = torch.where(segments.flat(worth, batch, all_of_them), torch.zeros_like(above), above)
    local_share = torch.sigmoid(k * (entropy - b))
    local_N, out_N = grpo(x, epsilon=epsilon, ddof=ddof), torch.zeros(x.valid_N.shape, dtype=torch.float64)
    for place, one in enumerate(groups):
        member_N = x.valid_N & (x.group_N == one)
        out_N[member_N] = local_share[place] * local_N[member_N] + (1 - local_share[place]) * above[place]
    return out_N.detach()
