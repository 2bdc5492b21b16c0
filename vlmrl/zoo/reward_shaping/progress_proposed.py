"""Progress beyond all earlier attempts earns something: RetroAgent's numerical feedback. After arXiv:2603.08561; the scale is ours.

    r + scale * max(0, phi - best),  best = the largest phi of the attempts at this row of data in earlier steps, 0 before the first

phi is a reward column that measures how far an attempt got (the share of subgoals that were reached), of weight 0 if it shall do nothing
else. It says nothing of what was reached before, and is 0 as soon as the best is reached again: it pays exploration that got further, once.
In the paper an attempt's own reflection gives phi. Attempts of one step do not compete: each is compared with the steps before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping


def furthest(state: Mapping[str, Any], x: AdvantageInputs, *, potential: str) -> dict[str, float]:
    """The memory after a step: row of data -> the largest potential of an attempt at it."""
    out = {name: float(value) for name, value in state.items()}
    phi_N = x.rewards_NK[:, column_index(x, potential)]
    judged_N = x.valid_N & ~phi_N.isnan()
    sample_N = need(x, "sample_N", "reward_shaping 'progress_proposed'")
    for sample, phi in zip(sample_N[judged_N], phi_N[judged_N], strict=True):
        out[str(int(sample))] = max(out.get(str(int(sample)), float(phi)), float(phi))
    return out


@reward_shaping("progress_proposed", paper="arXiv:2603.08561", needs=("sample_N",), remembers=furthest)
def progress_proposed(
    rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, potential: str, scale: float = 1.0
) -> Tensor:
    """Add to a column how far an attempt got beyond the best attempt of earlier steps at the same row.

    Raises:
        ValueError: scale not above 0, no such column, no `sample_N` or no `memory`.
    """
    if scale <= 0:
        raise ValueError(f"reward_shaping 'progress_proposed': scale is {scale}; it must be above 0")
    if x.memory is None:
        raise ValueError("reward_shaping 'progress_proposed' needs its memory (the best before this step; empty at first), which is None")
    k = column_index(x, reward)
    phi_N = rewards_NK[:, column_index(x, potential)]
    samples = [str(int(sample)) for sample in need(x, "sample_N", "reward_shaping 'progress_proposed'")]
    best_N = torch.tensor([max(0.0, float(x.memory[s])) if s in x.memory else 0.0 for s in samples], dtype=torch.float64)
    gain_N = torch.where(phi_N.isnan(), torch.zeros_like(phi_N), (phi_N - best_N).clamp(min=0))
    return with_column(rewards_NK, k, rewards_NK[:, k] + scale * gain_N)
