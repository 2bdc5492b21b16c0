"""Detection: average precision of scored boxes over many pictures, in the convention of COCO.

Convention (that of `pycocotools`, COCO "AP", without crowds, areas or ignored boxes): per picture the `max_detections` best-scored
predictions are taken in order of their score, each takes the free true box with the largest IoU if that is >= the threshold; over
all pictures precision is made monotone from the right and read at the 101 recalls 0, 0.01, ..., 1. Shares, not percent. A language
model gives no scores: `score=1.0` for all makes the order that of the answer, and AP then depends on it; `matched_score` of
`metrics.boxes` does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlmrl.metrics.boxes import Box, iou

THRESHOLDS = tuple(i / 100 for i in range(50, 100, 5))
"""0.50, 0.55, ..., 0.95."""
RECALLS = tuple(i / 100 for i in range(101))


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One picture, for one category of things."""

    gold: Sequence[Box]
    pred: Sequence[Box]
    scores: Sequence[float]
    """One per prediction."""


def accuracy_at(values: Sequence[float], threshold: float, *, strict: bool = False) -> float:
    """acc@t: share of values >= the threshold, or > it if `strict` (RefCOCO is usually >=; VLM-R1, arXiv:2504.07615, uses >).

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("accuracy_at: no values")
    return sum(v > threshold if strict else v >= threshold for v in values) / len(values)


def average_precision(pictures: Sequence[Picture], threshold: float, *, max_detections: int = 100) -> float:
    """AP of one category at one IoU threshold, in [0, 1].

    Raises:
        ValueError: no true box in any picture (AP is not defined), or scores and predictions of different number.
    """
    total = sum(len(p.gold) for p in pictures)
    if not total:
        raise ValueError("average_precision: no true boxes; leave out categories that do not occur")
    scores: list[float] = []
    hits: list[bool] = []
    for i, picture in enumerate(pictures):
        if len(picture.scores) != len(picture.pred):
            raise ValueError(f"average_precision: picture {i} has {len(picture.pred)} predictions and {len(picture.scores)} scores")
        order = np.argsort(-np.asarray(picture.scores, dtype=float), kind="stable")[:max_detections]
        scores += [float(picture.scores[j]) for j in order]
        hits += _hits([picture.pred[j] for j in order], picture.gold, threshold)
    if not hits:
        return 0.0
    order = np.argsort(-np.asarray(scores), kind="stable")
    right = np.cumsum(np.asarray(hits, dtype=float)[order])
    precision = np.maximum.accumulate((right / np.arange(1, len(hits) + 1))[::-1])[::-1]
    places = np.searchsorted(right / total, RECALLS, side="left")
    return float(np.append(precision, 0.0)[np.minimum(places, len(hits))].mean())


def mean_average_precision(
    categories: Sequence[Sequence[Picture]], thresholds: Sequence[float] = THRESHOLDS, *, max_detections: int = 100
) -> float:
    """AP averaged over thresholds, then over the categories that occur (AP@[.5:.95] by default), in [0, 1].

    Raises:
        ValueError: no category has a true box.
    """
    present = [pictures for pictures in categories if any(p.gold for p in pictures)]
    if not present:
        raise ValueError("mean_average_precision: no true boxes in any category")
    per_category = [[average_precision(c, t, max_detections=max_detections) for t in thresholds] for c in present]
    return float(np.mean(per_category))


def _hits(pred: Sequence[Box], gold: Sequence[Box], threshold: float) -> list[bool]:
    """For predictions in order of their score whether each finds a free true box; of equal IoUs the last one is taken, as COCO does."""
    free = [True] * len(gold)
    out: list[bool] = []
    for box in pred:
        best, place = min(threshold, 1 - 1e-10), -1
        for j, true in enumerate(gold):
            if free[j] and (overlap := iou(box, true)) >= best:
                best, place = overlap, j
        if place >= 0:
            free[place] = False
        out.append(place >= 0)
    return out
