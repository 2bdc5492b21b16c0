"""Holm's step-down correction of several p values (S. Holm, A simple sequentially rejective multiple test procedure, 1979)."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p values, in the order given: the i-th smallest times (m - i + 1) of m, never less than that of a smaller one, at most 1.

    Rejecting what is below alpha keeps the chance of any false rejection below alpha, however the tests depend on each other.

    Raises:
        ValueError: a value is not in [0, 1].
    """
    for place, value in enumerate(p):
        if not 0 <= value <= 1:
            raise ValueError(f"p value {place} is {value}; it must be in [0, 1]")
    out = [0.0] * len(p)
    reached = 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        # from the smallest up; `reached` keeps adjusted values in the order of the raw ones
        reached = max(reached, min(1.0, (len(p) - rank) * p[place]))
        out[place] = reached
    return out
