"""Train Long, Think Short: a reward for using a token budget that shrinks over training. arXiv:2508.08940.

B(t) = max(1, B0 * decay^floor(t / T)); e(L) = L / B up to B, 1 - (L - B) / B up to 2B, 0 beyond. `weight` * e is added to a column.
The paper sums 0.3 or 0.6 of the task reward, 0.6 or 0.3 of e (an ablation swaps them) and a format term.

Ours: the interval T is a share of the stage: `drops` reductions in equal parts, three by default as the paper's 256 tokens end at 87.
B is rounded down to a whole token. The default weight is the paper's smaller share over its larger one. The triangle also pays for
using up the budget; `form: plateau` pays 1 for anything within it. The term is not gated by correctness: with a weight above
the gap between right and wrong, a wrong answer of the right length wins. The paper states the budget in the prompt; that is up to
the recipe's prompt.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping


def budget(progress: float, *, start: int, decay: float, drops: int) -> int:
    """Tokens at this share of the stage: `drops` + 1 plateaus of equal length."""
    # the small addend keeps a step that starts a plateau on it, whatever rounding did to its share
    passed = min(drops, math.floor(progress * (drops + 1) + 1e-9))
    return max(1, math.floor(start * decay**passed))


def efficiency(length: Tensor, tokens: int, *, form: Literal["triangle", "plateau"]) -> Tensor:
    """e(L), elementwise, float64 in [0, 1]."""
    used = length.double() / tokens
    rising = used if form == "triangle" else torch.ones_like(used)
    return torch.where(used <= 1, rising, (2 - used).clamp(min=0))


@reward_shaping("budget_schedule", paper="arXiv:2508.08940", needs=("progress",))
def budget_schedule(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    start: int = 256,
    decay: float = 0.7,
    drops: int = 3,
    weight: float = 0.5,
    form: Literal["triangle", "plateau"] = "triangle",
) -> Tensor:
    """Add `weight` times how well the length fits the current budget. `start`: first budget, in tokens."""
    if start < 1 or not 0 < decay <= 1 or drops < 0:
        raise ValueError(
            f"reward_shaping 'budget_schedule': start {start}, decay {decay}, drops {drops}; "
            "needs start >= 1, decay in (0, 1] and drops >= 0"
        )
    k = column_index(x, reward)
    tokens = budget(float(need(x, "progress", "reward_shaping 'budget_schedule'")), start=start, decay=decay, drops=drops)
    return with_column(rewards_NK, k, rewards_NK[:, k] + weight * efficiency(x.length_N, tokens, form=form))
