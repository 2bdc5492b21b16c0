"""The return contract of a reward function: one finite number, or None for "cannot judge", per rollout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

LARGEST = 1e12
"""Greatest magnitude of a reward. Far above what means anything, and far below where sums of squares overflow, in float32 too."""
OUTPUT_CHARS = 2000
"""Longest piece of a trace or of printed text that a fault carries."""


class ContractError(ValueError):
    """A reward returned something else than one finite number or None per rollout. Counted as `contract`, never a score."""


def contract_problem(returned: Any, n: int) -> str | None:
    """Describe what is wrong with a reward's return value for `n` rollouts; None if it is one real number within `LARGEST` or None each.

    Booleans, strings, tensors and numpy scalars that are not Python floats (`np.float32`) are refused: they are more often a
    comparison or a batch that slipped through than a score.
    """
    if isinstance(returned, str | bytes) or not isinstance(returned, Sequence):
        return f"returned {type(returned).__name__}, expected a list with one number or None per rollout"
    if len(returned) != n:
        return f"returned {len(returned)} values for {n} rollouts"
    for i, value in enumerate(returned):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"value {i} is {type(value).__name__} {value!r:.100}, expected a float or None"
        if not abs(value) <= sys.float_info.max:  # also NaN, and integers that no float can hold
            return f"value {i} is not a finite float; return None where it cannot be judged"
        if abs(value) > LARGEST:
            return f"value {i} is {value:.3g}, beyond {LARGEST:g}, where means and deviations overflow; scale the reward, best to [0, 1]"
    return None
