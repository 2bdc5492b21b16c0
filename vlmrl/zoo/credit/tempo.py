"""TEMPO: temporal differences on the prefix tree of a group. arXiv:2509.18314.

V(prefix) is the mean reward of the group's members that begin with it; A[i, t] = A_i + (V(s_t+1) - V(s_t)) / (std_g + epsilon), with
A_i the rollout's advantage. With `advantage: grpo` and the same `epsilon` and `ddof` this is the authors'
(r_i - mean + V(s_t+1) - V(s_t)) / (std + epsilon). The difference is 0 where nothing branches and once a member is alone, so
that responses which differ from their first token on get it on that token only; free sampling branches early, and then this is close
to `broadcast`.

Ours: tokens are compared as ids at the same place, tool output included (it is part of the prefix), but only trained tokens get
credit. Unjudged rollouts are removed before the tree is built; a group without signal gets no differences. A member that ends where
others go on and has no end token of its own keeps the value of that shared prefix.
"""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import credit


def _renumber(key_N: Tensor) -> Tensor:
    # torch.unique has no types of its own
    return cast("tuple[Tensor, Tensor]", torch.unique(key_N, return_inverse=True))[1]  # pyright: ignore[reportUnknownMemberType]


def prefix_differences(ids_NT: Tensor, length_N: Tensor, reward_N: Tensor, group_N: Tensor, valid_N: Tensor) -> Tensor:
    """V(s_t+1) - V(s_t) of each token, float64 [N, T]; 0 past the end and for rows that are not valid."""
    out_NT = torch.zeros(ids_NT.shape, dtype=torch.float64)
    reward_N = reward_N.double()
    node_N = _renumber(group_N)
    value_N = segments.mean(reward_N, node_N, valid_N)
    width = int(ids_NT.max()) + 1 if ids_NT.numel() else 1
    # M: the rows that still share a prefix with one of another reward; where all who share it have one reward (a member that is alone,
    # above all), its value cannot change any more, and they leave together
    row_M = valid_N.nonzero(as_tuple=True)[0]
    node_M, value_M = node_N[row_M], value_N[row_M]
    for t in range(ids_NT.shape[1]):
        open_M = torch.zeros_like(node_N, dtype=torch.bool).index_put((node_M[value_M != reward_N[row_M]],), torch.tensor(True))[node_M]
        stays_M = open_M & (length_N[row_M] > t)
        row_M, node_M, value_M = row_M[stays_M], node_M[stays_M], value_M[stays_M]
        if not len(row_M):
            break
        node_M = _renumber(node_M * width + ids_NT[row_M, t])
        next_M = segments.mean(reward_N[row_M], node_M, torch.ones_like(row_M, dtype=torch.bool))
        out_NT[row_M, t] = next_M - value_M
        value_M = next_M
    return out_NT


@credit("tempo", paper="arXiv:2509.18314", needs=("ids_NT",), moves_signs=True)
def tempo(x: AdvantageInputs, adv_N: Tensor, mask_NT: Tensor, *, epsilon: float = 1e-4, ddof: Literal[0, 1] = 1) -> Tensor:
    """The advantage plus, on branching tokens, how much the branch changed the mean reward.

    Raises:
        ValueError: no `ids_NT`, or one of another shape than the mask.
    """
    ids_NT = need(x, "ids_NT", "credit 'tempo'")
    if ids_NT.shape != mask_NT.shape:
        raise ValueError(f"credit 'tempo': ids_NT has shape {tuple(ids_NT.shape)}, the mask {tuple(mask_NT.shape)}; they must match")
    live_N = x.valid_N & ~segments.flat(x.reward_N, x.group_N, x.valid_N)
    difference_NT = prefix_differences(ids_NT, x.length_N, x.reward_N, x.group_N, live_N)
    std_N = segments.std(x.reward_N, x.group_N, live_N, ddof=ddof) + epsilon
    out_NT = adv_N[:, None] + torch.where(live_N[:, None], difference_NT / std_N[:, None], torch.zeros_like(difference_NT))
    return torch.where(mask_NT, out_NT, torch.zeros_like(out_NT)).detach()
