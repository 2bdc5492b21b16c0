"""ASPO: an earlier (or later) first tool call within right answers, shaped in the advantage. arXiv:2508.19201.

Among the group's right answers that call a tool, with p_i the place of the first call's token and L_i the length:

    A'_i = A_i + clip(delta (p_i - mean p) / mean L, -k A_i, k A_i)

delta below 0 rewards early calls. The paper's text has (delta, k) = (-2, 0.7) and (-2.5, 0.9). Shaped in the reward the same term would be
blown up by the deviation of a group that is nearly solved.

A call begins with the token ids `marker`, as the tokenizer writes what opens one. Right: an advantage above 0. Ours: fewer than two such
answers leave the group as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight


def first_place(ids_NT: Tensor, length_N: Tensor, marker: list[int]) -> Tensor:
    """Place of the first occurrence of a sequence of ids within each response, int64 [N]; -1 where there is none."""
    n, width = ids_NT.shape[1], len(marker)
    if n < width:
        return torch.full_like(length_N, -1)
    found_NT = (ids_NT.unfold(1, width, 1) == torch.tensor(marker)).all(dim=2)
    found_NT &= torch.arange(n - width + 1)[None, :] + width <= length_N[:, None]
    return torch.where(found_NT.any(dim=1), found_NT.long().argmax(dim=1), -1)


@reweight("aspo", paper="arXiv:2508.19201", needs=("ids_NT",))
def aspo(x: AdvantageInputs, adv_N: Tensor, *, marker: list[int], delta: float = -2.0, k: float = 0.7) -> Tensor:
    """Positive advantages plus a bounded bonus for the place of the first tool call, which begins with the ids `marker`. [N]

    Raises:
        ValueError: no marker, k outside [0, 1), or no token ids.
    """
    if not marker or not 0 <= k < 1:
        raise ValueError(f"reweight 'aspo': needs a marker of token ids (given: {marker}) and k {k} in [0, 1), which keeps signs")
    place_N = first_place(need(x, "ids_NT", "reweight 'aspo'"), x.length_N, marker)
    calls_N = x.valid_N & (adv_N > 0) & (place_N >= 0)
    centred_N = place_N.double() - segments.mean(place_N.double(), x.group_N, calls_N)
    bonus_N = delta * centred_N / segments.mean(x.length_N.double(), x.group_N, calls_N).clamp(min=1)
    bound_N = k * adv_N.clamp(min=0)
    shaped_N = adv_N + torch.maximum(torch.minimum(bonus_N, bound_N), -bound_N)
    return torch.where(calls_N & (segments.count(x.group_N, calls_N) > 1), shaped_N, adv_N)
