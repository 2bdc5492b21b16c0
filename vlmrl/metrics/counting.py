"""Counting over a set of questions: how often right, how often readable, and how far off (CLEVR, Super-CLEVR)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Counting:
    """Shares are over all questions: what cannot be read is wrong. Errors are in things counted."""

    n: int
    accuracy: float
    off_by_one: float
    """Share of answers that are off by at most one."""
    parse_rate: float
    mae: float | None
    """Mean absolute error of the answers that could be read; None if none could. It flatters a system that is often unreadable."""
    rmse: float | None
    """Root of the mean squared error, of the same answers."""
    mae_with_fail: float
    """Mean absolute error of all, an unreadable answer taken as 0."""


def counting(preds: Sequence[float | None], golds: Sequence[float]) -> Counting:
    """`preds`: the answered number of each question, None where none could be read (`metrics.numbers.parse_count`).

    Raises:
        ValueError: no questions, or predictions and true numbers of different number.
    """
    if not golds or len(preds) != len(golds):
        raise ValueError(f"counting: {len(preds)} predictions for {len(golds)} questions; give one each, None where nothing could be read")
    read = [abs(p - g) for p, g in zip(preds, golds, strict=True) if p is not None]
    unread = [abs(g) for p, g in zip(preds, golds, strict=True) if p is None]
    n = len(golds)
    return Counting(
        n=n,
        accuracy=sum(error == 0 for error in read) / n,
        off_by_one=sum(error <= 1 for error in read) / n,
        parse_rate=len(read) / n,
        mae=sum(read) / len(read) if read else None,
        rmse=math.sqrt(sum(error * error for error in read) / len(read)) if read else None,
        mae_with_fail=(sum(read) + sum(unread)) / n,
    )
