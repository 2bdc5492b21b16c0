"""D3S's token level: only the tokens with the largest advantage times entropy train. arXiv:2509.22115.

    A[i, t] <- A[i, t] * 1[|A[i, t]| H[i, t] is among the largest share of the batch]

The share runs linearly from `start` to `end` over the stage: from few tokens to all. The sample level is filter `d3s`. Ours: the two shares
(the paper's were not to be found); the batch is this rank's rows; a token without any advantage is never counted among the largest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight


@reweight("d3s_tokens", paper="arXiv:2509.22115", needs=("entropy_NT", "progress"), per="token")
def d3s_tokens(x: AdvantageInputs, adv_NT: Tensor, *, start: float = 0.2, end: float = 1.0) -> Tensor:
    """Token advantages where |advantage| * entropy is among the largest of the batch, 0 elsewhere. [n, T]

    Raises:
        ValueError: a share outside (0, 1], or no entropies.
    """
    if not (0 < start <= 1 and 0 < end <= 1):
        raise ValueError(f"reweight 'd3s_tokens': start is {start} and end {end}; both must be in (0, 1]")
    entropy_NT = need(x, "entropy_NT", "reweight 'd3s_tokens'")[:, : adv_NT.shape[1]]
    inside_NT = torch.arange(entropy_NT.shape[1])[None, :] < x.length_N[:, None]
    worth_NT = torch.where(inside_NT, adv_NT.abs() * entropy_NT, torch.zeros_like(adv_NT))
    progress = float(need(x, "progress", "reweight 'd3s_tokens'"))
    kept = max(1, round((start + (end - start) * progress) * int(inside_NT.sum())))
    if kept >= int(inside_NT.sum()):
        return adv_NT
    bound = worth_NT[inside_NT].sort(descending=True).values[kept - 1]
    return torch.where(inside_NT & (worth_NT >= bound) & (worth_NT > 0), adv_NT, torch.zeros_like(adv_NT))
