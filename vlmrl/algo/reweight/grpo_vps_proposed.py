"""GRPO-VPS: the parts of a thought that make the right answer likelier earn more. After arXiv:2604.20659.

A thought is cut into segments where the policy is least sure. p_k is the likelihood of the right answer if it were given behind segment k,
and d_k = p_k - p_(k-1) the segment's progress. Its tokens get

    A_i + beta (d_k - mean d) / (std d + epsilon), changed by at most `most` |A_i|,

mean and deviation over the segments of the group. From the paper: cuts at tokens of high entropy, and probing with the answer. Ours, as
they could not be read: the form of the mixture, beta 0.5, eight segments of 8 tokens and more, and the bound 0.9, below 1 so that signs
stay; tokens behind the thought keep A_i. The right answer is a text: of boxes and spans of time it is how the row writes them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight

NAME = "reweight 'grpo_vps_proposed'"
EPSILON = 1e-6


def progress(belief_NS: Tensor, cut_NS: Tensor, group_N: Tensor, valid_N: Tensor) -> Tensor:
    """z-score within the group of each segment's progress, float64 [n, S]; 0 for segments without tokens or without a belief."""
    gain_NS = belief_NS[:, 1:] - belief_NS[:, :-1]
    there_NS = (cut_NS[:, 1:] > cut_NS[:, :-1]) & valid_N[:, None] & ~gain_NS.isnan()
    out_NS = torch.zeros_like(gain_NS)
    for group in range(int(group_N.max()) + 1 if len(group_N) else 0):
        of_group_NS = there_NS & (group_N == group)[:, None]
        gains = gain_NS[of_group_NS]
        if len(gains) > 1:
            out_NS[of_group_NS] = (gains - gains.mean()) / (gains.std(unbiased=False) + EPSILON)
    return out_NS


@reweight("grpo_vps_proposed", paper="arXiv:2604.20659", needs=("belief_NS", "cut_NS"), per="token")
def grpo_vps_proposed(
    x: AdvantageInputs, adv_NT: Tensor, *, beta: float = 0.5, most: float = 0.9, segments: int = 8, least: int = 8
) -> Tensor:
    """Token advantages plus how much the token's segment raised the likelihood of the right answer. [n, T]

    Raises:
        ValueError: beta below 0, `most` outside [0, 1), fewer than one segment or token, or no beliefs.
    """
    if beta < 0 or not 0 <= most < 1 or segments < 1 or least < 1:
        given = f"beta {beta} >= 0, most {most} in [0, 1), segments {segments} >= 1 and least {least} >= 1"
        raise ValueError(f"{NAME}: needs {given}")
    cut_NS = need(x, "cut_NS", NAME)
    score_NS = progress(need(x, "belief_NS", NAME), cut_NS, x.group_N, x.valid_N)
    place_T = torch.arange(adv_NT.shape[1])
    inside_NST = (place_T >= cut_NS[:, :-1, None]) & (place_T < cut_NS[:, 1:, None])
    added_NT = beta * torch.where(inside_NST, score_NS[:, :, None], torch.zeros((), dtype=score_NS.dtype)).sum(dim=1).to(adv_NT.dtype)
    bound_NT = most * adv_NT.abs()
    return adv_NT + torch.minimum(torch.maximum(added_NT, -bound_NT), bound_NT)
