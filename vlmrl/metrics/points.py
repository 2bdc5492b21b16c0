"""Points in a picture: reading them from text, hits in masks, similarity of point sets, and the segmentation answer of OneThinker.

Points are (x, y) in the frame of the row (`metrics.boxes`), x to the right and y down.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from vlmrl.metrics.boxes import Box, Point, iou, json_object, numbers

SIGMA = 50.0
"""Width of the similarity of points in the released code of OneThinker (arXiv:2512.03043), in units of the frame."""
TIME_SCALE = 2.0
"""Seconds over which the similarity of two key-frame times falls to 1/e (same source)."""
_CAP = 4096
_PIXELS = 1 << 26
_MOST = 64
_NUMBER = r"\s*(-?\d{1,9}(?:\.\d{1,9})?)\s*"
_PAIR = re.compile(rf"[\[(]{_NUMBER},{_NUMBER}[\])]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Segmentation:
    """What a promptable segmenter needs: a box and points on and off the object; of a video also the time of the frame in seconds."""

    box: Box
    positive: tuple[Point, ...]
    negative: tuple[Point, ...]
    time: float | None = None


def parse_points(text: str) -> list[Point] | None:
    """Read the points that an answer gives.

    Read as JSON `{"points": [[x, y], ...]}` or `{"point": [x, y]}`, else every `[x, y]` or `(x, y)` in the text; a list of four numbers
    is a box and no point. Linear in the length of the text; at most 64 points.

    Returns:
        (x, y) of each, in the order of the answer; None if it gives none.
    """
    tail = text[-_CAP:]
    value = json_object(tail)
    if value is not None and ("points" in value or "point" in value):
        found = points_of(value["points"] if "points" in value else [value["point"]])
    else:
        found = [(float(x), float(y)) for x, y in _PAIR.findall(tail)]
    return list(found[:_MOST]) if found else None


def points_of(value: object) -> tuple[Point, ...] | None:
    """Read a JSON list of [x, y] as points; None if it is anything else. An empty list is one."""
    if not isinstance(value, list):
        return None
    read = [numbers(item, 2) for item in value]
    return None if any(p is None for p in read) else tuple((p[0], p[1]) for p in read if p is not None)


def decode_mask(mask: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Decode COCO's uncompressed run lengths `{"size": [H, W], "counts": [...]}`: columns first, starting with pixels outside.

    Returns:
        bool [H, W], true on the object.

    Raises:
        ValueError: sizes or counts are not whole numbers >= 0, or the counts do not fill the picture.
    """
    size, counts = mask.get("size"), mask.get("counts")
    if not (_whole(size) and len(size) == 2 and 0 < size[0] * size[1] <= _PIXELS and _whole(counts)):
        raise ValueError(f"mask: needs 'size': [height, width] of 1 to {_PIXELS} pixels and 'counts': run lengths, whole numbers >= 0")
    if sum(counts) != size[0] * size[1]:
        raise ValueError(f"mask: counts sum to {sum(counts)}, but size {size} has {size[0] * size[1]} pixels")
    # runs alternate, so those at odd places are inside; columns first: [W, H] in memory, turned to [H, W]
    flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return flat.reshape(size[1], size[0]).T


def _whole(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def share_in_mask(points: Sequence[Point], mask: NDArray[np.bool_]) -> float:
    """Compute RefSpatial's measure (arXiv:2506.04308): share of the points that lie on the mask [H, W]; 0 without points.

    Points are in pixels of the mask; (x, y) is in pixel (floor x, floor y). A point outside of the picture counts as a miss.
    """
    height, width = mask.shape
    hits = 0
    for x, y in points:
        column, row = math.floor(x), math.floor(y)
        hits += bool(0 <= column < width and 0 <= row < height and mask[row, column])
    return hits / len(points) if points else 0.0


def set_similarity(pred: Sequence[Point], gold: Sequence[Point], *, sigma: float = SIGMA) -> float:
    """Compute exp(-d^2 / (2 sigma^2)) with d the mean distance of the one-to-one assignment with the smallest sum.

    0 for sets of different size (the released code of arXiv:2512.03043 asks for exactly three points); 1 if both are empty.

    Returns:
        In [0, 1].

    Raises:
        ValueError: `sigma` is not positive.
    """
    if sigma <= 0:
        raise ValueError(f"set_similarity: sigma must be positive, got {sigma}")
    if len(pred) != len(gold):
        return 0.0
    if not gold:
        return 1.0
    from scipy.optimize import linear_sum_assignment  # heavy

    distances = np.array([[math.dist(p, g) for g in gold] for p in pred])
    rows, columns = linear_sum_assignment(distances)
    mean = float(distances[rows, columns].sum()) / len(gold)
    return math.exp(-((mean / sigma) ** 2) / 2)


def parse_segmentation(text: str) -> Segmentation | None:
    """Read the answer `{"boxes": [x1, y1, x2, y2], "positive_points": [[x, y], ...], "negative_points": [...]}`, of a video with
    `"time": seconds`; None if it is anything else."""
    value = json_object(text)
    return None if value is None else segmentation_of(value)


def segmentation_of(value: Mapping[str, Any]) -> Segmentation | None:
    """Read the same of a JSON object: an answer, or `gt.segmentation` of a row. A time that is no number makes it unreadable."""
    box = numbers(value.get("boxes"), 4)
    positive, negative = points_of(value.get("positive_points")), points_of(value.get("negative_points"))
    time = numbers([value["time"]], 1) if value.get("time") is not None else ()
    if box is None or positive is None or negative is None or time is None:
        return None
    return Segmentation(
        box=(box[0], box[1], box[2], box[3]), positive=positive[:_MOST], negative=negative[:_MOST], time=time[0] if time else None
    )


def segmentation_score(pred: Segmentation, gold: Segmentation, *, sigma: float = SIGMA) -> float:
    """Score how well box, points and time agree, as the released code of OneThinker (arXiv:2512.03043) weighs them.

    Picture: IoU/2 + positive/4 + negative/4. Video (the true answer has a time): 0.3 IoU + 0.3 exp(-|dt| / 2 s) + 0.2 positive
    + 0.2 negative. 0 if a number of points differs, or a video's time is missing.

    Returns:
        In [0, 1].
    """
    if (len(pred.positive), len(pred.negative)) != (len(gold.positive), len(gold.negative)):
        return 0.0
    overlap = iou(pred.box, gold.box)
    positive = set_similarity(pred.positive, gold.positive, sigma=sigma)
    negative = set_similarity(pred.negative, gold.negative, sigma=sigma)
    if gold.time is None:
        return 0.5 * overlap + 0.25 * positive + 0.25 * negative
    if pred.time is None:
        return 0.0
    when = math.exp(-abs(pred.time - gold.time) / TIME_SCALE)
    return 0.3 * overlap + 0.3 * when + 0.2 * positive + 0.2 * negative
