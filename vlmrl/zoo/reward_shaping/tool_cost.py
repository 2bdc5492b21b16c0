"""Rewards that fall with the number of tool calls. OTC, arXiv:2504.14870.

The reward is multiplied by how near the calls m of an answer are to n, the fewest with which the row was ever answered right:

    1 if m = n = 0;  cos(m * pi / (2m + c)) if n = 0;  sin(f * pi / (2n)), f = 2nm / (m + n), else

so that calls pay only where they are needed, and never without a right answer.

Calls are a reward column, as `tool_calls` with weight 0 counts them; where rows are turns of attempts, m is the attempt's sum.

Ours: the fewest calls are kept per row of data between steps, and the step's own right answers count before they are used, so that a new
best is not punished. Before there is any right answer OTC changes nothing. OTC's formula is from notes of its method, c from third-party
code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping


def efficiency(m: float, n: float, c: float = 1.0) -> float:
    """How near `m` calls are to the fewest `n`, in [0, 1]."""
    if n == 0:
        return 1.0 if m == 0 else math.cos(m * math.pi / (2 * m + c))
    return math.sin(2 * n * m / (m + n) * math.pi / (2 * n))


def calls_of(rewards_NK: Tensor, x: AdvantageInputs, calls: str) -> Tensor:
    """Calls of each row, or of its attempt; NaN where nothing counted them."""
    calls_N = rewards_NK[:, column_index(x, calls)]
    trajectory_N = x.provided.get("trajectory_N")
    if trajectory_N is None:
        return calls_N
    counted_N = ~calls_N.isnan()
    steps_N = segments.count(trajectory_N, torch.ones_like(counted_N))
    whole_N = segments.count(trajectory_N, counted_N) == steps_N
    total_N = segments.mean(calls_N, trajectory_N, whole_N) * steps_N
    return torch.where(whole_N, total_N, torch.full_like(total_N, float("nan")))


def fewest(state: Mapping[str, Any], x: AdvantageInputs, *, reward: str, calls: str, correct_from: float = 1.0) -> dict[str, float]:
    """The memory after a step: row of data -> fewest calls of an answer that was right."""
    out = {name: float(value) for name, value in state.items()}
    sample_N = need(x, "sample_N", "reward_shaping 'otc'")
    calls_N = calls_of(x.rewards_NK, x, calls)
    right_N = x.valid_N & (x.rewards_NK[:, column_index(x, reward)] >= correct_from) & ~calls_N.isnan()
    for sample, m in zip(sample_N[right_N], calls_N[right_N], strict=True):
        out[str(int(sample))] = min(out.get(str(int(sample)), math.inf), float(m))
    return out


@reward_shaping("otc", paper="arXiv:2504.14870", needs=("sample_N", "trajectory_N"), remembers=fewest)
def otc(
    rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, calls: str, correct_from: float = 1.0, c: float = 1.0
) -> Tensor:
    """Scale a column by how near its number of tool calls is to the fewest with which the row was answered right.

    Raises:
        ValueError: c not above 0, no such column, no `sample_N` or no `memory`.
    """
    if c <= 0:
        raise ValueError(f"reward_shaping 'otc': c is {c}; it must be above 0")
    if x.memory is None:
        raise ValueError("reward_shaping 'otc' needs its memory (the fewest calls before this step; empty at the first), which is None")
    k = column_index(x, reward)
    samples = [str(int(sample)) for sample in need(x, "sample_N", "reward_shaping 'otc'")]
    known = {sample: float(x.memory[sample]) for sample in samples if sample in x.memory}
    best = fewest(known, x, reward=reward, calls=calls, correct_from=correct_from)
    calls_N = [float(m) for m in calls_of(rewards_NK, x, calls)]
    scale = [
        efficiency(m, best[sample], c) if sample in best and not math.isnan(m) else 1.0 for sample, m in zip(samples, calls_N, strict=True)
    ]
    return with_column(rewards_NK, k, rewards_NK[:, k] * torch.tensor(scale, dtype=torch.float64))
