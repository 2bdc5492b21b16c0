"""Rank-GRPO's advantages: the items of a list are compared with the items of the same rank. arXiv:2510.20150, with the authors' code.

With hit_k 1 where the item of rank k is one of those that were looked for (`rewards.lists`), an item's reward is what is gained from
it on, r_k = sum over j >= k of hit_j / log2(j + 1) (`decay`), or hit_k alone. An item that came earlier is not credited to a later one.

    A_ik = (r_ik - mean_i r_ik) / (std_i r_ik + epsilon)   over the rollouts of the group, for each rank k

is the advantage of the tokens of item k. Where the list ends is taught by hand: the last token gets `ending` where there are `items` of
them and -`ending` where there are fewer, tokens of items past these -`ending`.

With loss `rank_grpo`, whose ratio is one per item. Ours: tokens outside the list (a thought) keep the advantage of their answer, of reward
`listed_items` for instance; the numbers for the list's end are taken for advantages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight

NAME = "reweight 'rank_grpo'"
EPSILON = 1e-4


def by_rank(hit_NJ: Tensor, group_N: Tensor, valid_N: Tensor, *, decay: bool) -> Tensor:
    """Advantage of each rank's item, float64 [N, J]."""
    ranks_J = torch.arange(1, hit_NJ.shape[1] + 1, dtype=torch.float64)
    gain_NJ = hit_NJ / torch.log2(ranks_J + 1)
    reward_NJ = gain_NJ.flip(1).cumsum(1).flip(1) if decay else hit_NJ
    columns = [
        torch.where(
            valid_N & ~segments.flat(r_N, group_N, valid_N),
            (r_N - segments.mean(r_N, group_N, valid_N)) / (segments.std(r_N, group_N, valid_N, ddof=1) + EPSILON),
            torch.zeros_like(r_N),
        )
        for r_N in reward_NJ.unbind(dim=1)
    ]
    return torch.stack(columns, dim=1)


@reweight("rank_grpo", paper="arXiv:2510.20150", needs=("item_NT", "hit_NJ"), per="token", moves_signs=True)
def rank_grpo(x: AdvantageInputs, adv_NT: Tensor, *, items: int = 20, decay: bool = True, ending: float = 0.1) -> Tensor:
    """Token advantages, within a list those of the item among all answers' items of its rank. [n, T]

    Raises:
        ValueError: no items, a negative `ending`, or no list was found for the step.
    """
    if items < 1 or ending < 0:
        raise ValueError(f"{NAME}: needs items {items} >= 1 and ending {ending} >= 0")
    width = adv_NT.shape[1]
    item_NT = need(x, "item_NT", NAME)[:, :width]
    rank_NJ = by_rank(need(x, "hit_NJ", NAME), x.group_N, x.valid_N, decay=decay).to(adv_NT.dtype)
    of_item_NT = rank_NJ.gather(1, item_NT.clamp(min=0, max=items - 1))
    out_NT = torch.where((item_NT >= 0) & (item_NT < items), of_item_NT, adv_NT)
    out_NT = torch.where(item_NT >= items, torch.full_like(out_NT, -ending), out_NT)
    count_N = item_NT.max(dim=1).values + 1
    last_NT = torch.arange(width)[None, :] == (x.length_N - 1)[:, None]
    end_N = torch.where(count_N == items, ending, torch.where(count_N < items, -ending, 0.0)).to(out_NT.dtype)
    return torch.where(x.valid_N[:, None], torch.where(last_NT, end_N[:, None], out_NT), adv_NT)
