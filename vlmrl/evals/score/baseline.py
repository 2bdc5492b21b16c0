"""The constant-answer baseline of temporal grounding: one span given to every question, which any model that looks has to beat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_CANDIDATES = 128
"""Distinct starts (and ends) that are tried."""

Span = tuple[float, float]


def constant_baseline(golds: Sequence[Span]) -> tuple[Span, float]:
    """Find the span (seconds) with the largest mean IoU as the answer to every question, and that mean.

    With the end fixed, each IoU is convex in the start between gold boundaries and falls after a gold start, so a best start is a
    gold start; likewise for ends. All pairs are tried; with more than `MAX_CANDIDATES` distinct starts or ends, only that many
    quantiles of them are, and the result is a lower bound.

    Returns:
        ((start, end) in seconds, its mean IoU in [0, 1]).

    Raises:
        ValueError: no gold spans.
    """
    if not golds:
        raise ValueError("no gold spans")
    gold = np.asarray(golds, dtype=np.float64)
    starts, ends = _candidates(gold[:, 0]), _candidates(gold[:, 1])
    best: tuple[float, Span] = (-1.0, (0.0, 0.0))
    for start in starts:
        later = ends[ends >= start]
        if not len(later):
            continue
        # [ends, questions] for one start; the hull takes the place of the union, which it equals wherever there is overlap
        overlap = np.minimum(later[:, None], gold[:, 1]) - np.maximum(start, gold[:, 0])
        hull = np.maximum(later[:, None], gold[:, 1]) - np.minimum(start, gold[:, 0])
        means = np.divide(overlap.clip(min=0), hull, out=np.zeros_like(hull), where=hull > 0).mean(axis=1)
        place = int(means.argmax())
        if means[place] > best[0]:
            best = float(means[place]), (float(start), float(later[place]))
    return best[1], best[0]


def _candidates(values: np.ndarray) -> np.ndarray:
    distinct = np.unique(values)
    if len(distinct) <= MAX_CANDIDATES:
        return distinct
    return np.unique(np.quantile(values, np.linspace(0, 1, MAX_CANDIDATES), method="nearest"))
