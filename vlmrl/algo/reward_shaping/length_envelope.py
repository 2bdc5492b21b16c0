"""G2RPO's task-level length shaping: a reward for responses whose length suits the task. arXiv:2604.08539, eq. 9.

E(L) of L response tokens is 0 below L_min, rises linearly to 1 at L_low, stays 1 up to L_high, falls linearly to 0 at L_max, and is 0
above. `weight` * E is added to a reward column.

Ours: lengths are tokens as in the paper (the released code counts characters, and gives the term weight 0; 0.1 is from a comment in
it). The paper has no thresholds per task: `BANDS` holds ours, chosen by eye from its length curves; recipes can name others. Tasks
without a band are left alone. A ramp without width is a step. A task whose rollouts may skip the thought needs L_min = L_low = 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, with_column
from vlmrl.algo.registries import reward_shaping

BANDS: dict[str, tuple[int, int, int, int]] = {
    "math_reasoning": (16, 300, 1400, 3072),
    "general_vqa_science_stem": (16, 300, 1600, 3072),
    "chart_figure_qa": (8, 150, 1100, 2560),
    "spatial_reasoning": (8, 100, 700, 2048),
    "spatial_grounding": (0, 8, 110, 320),
    "ocr": (0, 4, 100, 320),
    "document": (0, 4, 100, 320),
}
"""Task -> (L_min, L_low, L_high, L_max) in tokens. Ours."""


def envelope(length: Tensor, *, l_min: int, l_low: int, l_high: int, l_max: int) -> Tensor:
    """Compute E(L) of eq. 9, elementwise.

    Returns:
        float64 in [0, 1], of the shape of `length`.
    """
    length = length.double()
    # a ramp without width divides by 1: no length lies on it, so the value is never used
    rising = (length - l_min) / max(l_low - l_min, 1)
    falling = (l_max - length) / max(l_max - l_high, 1)
    inside = torch.where(length < l_low, rising, torch.where(length > l_high, falling, torch.ones_like(length)))
    return torch.where((length < l_min) | (length > l_max), torch.zeros_like(length), inside)


def _punishes_a_skipped_thought(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    bands = arguments.get("bands")
    if stage.answer_format == "think_or_not" and isinstance(bands, dict):
        low = [str(task) for task, band in cast("dict[Any, list[int]]", bands).items() if band and band[0] > 0]
        if low:
            yield f"reward_shaping 'length_envelope' punishes a skipped thought for {', '.join(low)} (band starts above 0)"


def _tasks(arguments: Mapping[str, Any]) -> list[str]:
    bands = arguments["bands"]
    return list(BANDS if bands is None else cast("dict[str, Any]", bands))


@reward_shaping("length_envelope", paper="arXiv:2604.08539", needs=("tasks",), doubts=_punishes_a_skipped_thought, for_tasks=_tasks)
def length_envelope(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    weight: float = 0.1,
    bands: dict[str, list[int]] | None = None,
) -> Tensor:
    """Add `weight` times the envelope of the rollout's task to a column. `bands`: task to [L_min, L_low, L_high, L_max], in tokens.

    Returns:
        Rewards [N, K].

    Raises:
        ValueError: the names of the tasks are missing, or a band does not increase.
    """
    k = column_index(x, reward)
    if not x.tasks and len(x.task_N):
        raise ValueError("reward_shaping 'length_envelope' needs tasks (their names by task id), which this run does not provide")
    known: dict[str, tuple[int, ...]] = dict(BANDS) if bands is None else {task: tuple(band) for task, band in bands.items()}
    bonus_N = torch.zeros(x.length_N.shape, dtype=torch.float64)
    for task, band in known.items():
        if len(band) != 4 or not 0 <= band[0] <= band[1] <= band[2] <= band[3]:
            raise ValueError(
                f"reward_shaping 'length_envelope': band of task '{task}' is {list(band)}, must be four lengths that do not decrease"
            )
        if task in x.tasks:
            e_N = envelope(x.length_N, l_min=band[0], l_low=band[1], l_high=band[2], l_max=band[3])
            bonus_N = torch.where(x.task_N == x.tasks.index(task), e_N, bonus_N)
    return with_column(rewards_NK, k, rewards_NK[:, k] + weight * bonus_N)
