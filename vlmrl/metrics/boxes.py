"""Boxes and points in a picture: overlap measures, matching of lists, reading from text, and coordinate frames.

A box is (x1, y1, x2, y2) in continuous coordinates, x to the right and y down, with x1 < x2 and y1 < y2; its area is
(x2 - x1) * (y2 - y1), without the extra pixel of some older code. Overlap measures compare two boxes of the same frame.

Frames (`types.CoordinateFrame`): `pixel` of a picture of a stated size (the original file's, or the processed one's, which is what
Qwen2.5-VL writes), `norm1`, and `norm1000` (what Qwen3-VL and the toy world write). A frame is declared by the data, never guessed
from the size of a number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from vlmrl.types import CoordinateFrame

Box = tuple[float, float, float, float]
Point = tuple[float, float]
Measure = Literal["iou", "giou", "ciou"]

_CAP = 4096
"""Characters of an answer that are looked at, from its end."""
_MOST = 64
"""Boxes of one answer that are read; more are no grounding."""
_LARGEST = 1e9
_NUMBER = r"\s*(-?\d{1,9}(?:\.\d{1,9})?)\s*"
_BARE = re.compile(rf"\[{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}\]")


def valid(box: Box) -> bool:
    """Check whether the corners are in order, so that the box has an area."""
    return box[0] < box[2] and box[1] < box[3]


def area(box: Box) -> float:
    """Compute the area; 0 for a box whose corners are not in order."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _intersection(a: Box, b: Box) -> float:
    return area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))


def iou(a: Box, b: Box) -> float:
    """Compute intersection over union.

    Returns:
        In [0, 1]; 0 if the union has no area, and for a box whose corners are not in order.
    """
    if not (valid(a) and valid(b)):
        return 0.0
    inter = _intersection(a, b)
    return inter / (area(a) + area(b) - inter)


def giou(a: Box, b: Box) -> float:
    """Compute generalised IoU: IoU - (hull - union) / hull, with the hull the smallest box around both (arXiv:1902.09630).

    A box without area counts as a point or line; 0 if the hull has no area either.

    Returns:
        In (-1, 1].
    """
    inter = _intersection(a, b)
    union = area(a) + area(b) - inter
    hull = area((min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])))
    if hull <= 0:
        return 0.0
    return (inter / union if union > 0 else 0.0) - (hull - union) / hull


def ciou(pred: Box, gold: Box) -> float:
    """Compute complete IoU (arXiv:1911.08287): IoU - rho^2 / c^2 - alpha * v.

    rho: distance of the centres; c: diagonal of the hull; v compares the aspect ratios; alpha = v / (1 - IoU + v). A prediction
    whose corners are not in order gets -1.

    Returns:
        At most 1, and negative for boxes far apart.

    Raises:
        ValueError: the gold box has no area.
    """
    if not valid(gold):
        raise ValueError(f"ciou: gold box {gold} has no area; x1 < x2 and y1 < y2")
    if not valid(pred):
        return -1.0
    overlap = iou(pred, gold)
    (px, py), (gx, gy) = centre(pred), centre(gold)
    width = max(pred[2], gold[2]) - min(pred[0], gold[0])
    height = max(pred[3], gold[3]) - min(pred[1], gold[1])
    # rho^2 / c^2, then v = 4 / pi^2 (atan(w_g / h_g) - atan(w / h))^2
    away = ((px - gx) ** 2 + (py - gy) ** 2) / (width**2 + height**2)
    angle = math.atan2(gold[2] - gold[0], gold[3] - gold[1]) - math.atan2(pred[2] - pred[0], pred[3] - pred[1])
    v = 4 / math.pi**2 * angle**2
    alpha = v / ((1 - overlap) + v) if v > 0 else 0.0
    return overlap - away - alpha * v


def centre(box: Box) -> Point:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def point_in_box(point: Point, box: Box, *, inclusive: bool = True) -> bool:
    """Check whether the point lies in the box, by default its border included."""
    if inclusive:
        return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]
    return box[0] < point[0] < box[2] and box[1] < point[1] < box[3]


MEASURES = {"iou": iou, "giou": giou, "ciou": ciou}
"""Name -> overlap of (prediction, gold)."""


def matched_score(pred: Sequence[Box], gold: Sequence[Box], measure: Measure = "iou") -> float:
    """Compare two lists: the best one-to-one assignment, each pair clamped at 0, over the longer length.

    Order does not matter; a repeated or superfluous box lowers the score; two empty lists score 1. This is the spatial grounding
    score of FGRPO (arXiv:2604.08476, eq. 1) with `measure="ciou"`; the clamp is ours, since the paper puts the score into [0, 1].

    Returns:
        In [0, 1].
    """
    if not pred or not gold:
        return float(len(pred) == len(gold))
    function = MEASURES[measure]
    score = np.array([[max(0.0, function(p, g)) for g in gold] for p in pred])
    # [P, G] of which one is 1: the best assignment is the best pair, and scipy is not loaded
    if min(score.shape) == 1:
        return float(score.max()) / max(score.shape)
    from scipy.optimize import linear_sum_assignment  # heavy

    rows, columns = linear_sum_assignment(-score)
    return float(score[rows, columns].sum()) / max(score.shape)


def sides(frame: CoordinateFrame, size: tuple[float, float]) -> tuple[float, float]:
    """Give width and height of a picture in the units of a frame; `size` is (width, height) in pixels."""
    return size if frame == "pixel" else (1.0, 1.0) if frame == "norm1" else (1000.0, 1000.0)


def convert(values: Sequence[float], size: tuple[float, float], *, source: CoordinateFrame, target: CoordinateFrame) -> tuple[float, ...]:
    """Convert coordinates x, y, x, y, ... of a point or box to another frame; `size` is (width, height) in pixels of the picture.

    Returns:
        As many coordinates, in the units of `target`.

    Raises:
        ValueError: an odd number of values, or a side that is not positive.
    """
    if len(values) % 2 or min(size) <= 0:
        raise ValueError(f"convert: need x, y pairs and positive sides, got {len(values)} values and size {size}")
    factors = [b / a for a, b in zip(sides(source, size), sides(target, size), strict=True)]
    return tuple(float(v) * factors[i % 2] for i, v in enumerate(values))


def parse_boxes(text: str) -> list[Box] | None:
    """Read the boxes that an answer gives. Corners are not put in order.

    Read as JSON `{"boxes": [[x1, y1, x2, y2], ...]}` (one box may stand without its own brackets), else every `[x1, y1, x2, y2]`
    in the text. Linear in the length of the text; at most 64 boxes.

    Returns:
        (x1, y1, x2, y2) of each, in the order of the answer; None if it gives none.
    """
    tail = text[-_CAP:]
    found = _json_boxes(tail)
    if found is None:
        found = [_box([float(v) for v in match]) for match in _BARE.findall(tail)]
    return found[:_MOST] or None


def _box(values: Sequence[float]) -> Box:
    x1, y1, x2, y2 = (float(v) for v in values)
    return x1, y1, x2, y2


def json_object(text: str, *, brackets: int = _MOST + 2, cap: int = _CAP) -> dict[str, Any] | None:
    """Read the JSON object from the first `{` to the last `}` of an answer's last `cap` characters; None if there is none.

    `brackets` bounds the `[` of it, and with them the depth: a model's `[[[[...` must not exhaust the stack of the JSON reader.
    """
    text = text[-cap:]
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end <= start or text.count("{") > 8 or text.count("[") > brackets:
        return None
    try:
        value = json.loads(text[start : end + 1])
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def numbers(value: object, count: int) -> tuple[float, ...] | None:
    """Read a JSON list of `count` finite numbers of sensible size; None if it is anything else."""
    if not isinstance(value, list) or len(value) != count or not all(_is_number(v) for v in value):
        return None
    return tuple(float(v) for v in value)


def listed(value: object) -> list[Any]:
    """Give lists and tuples as a list; anything else as an empty one, which no reader takes."""
    return list(value) if isinstance(value, list | tuple) else []


def _json_boxes(text: str) -> list[Box] | None:
    value = json_object(text)
    boxes = None if value is None else value.get("boxes")
    if not isinstance(boxes, list):
        return None
    # one box without brackets of its own; four boxes are lists, so the two cannot be mistaken
    listed = [boxes] if len(boxes) == 4 and all(_is_number(v) for v in boxes) else boxes
    if not all(isinstance(box, list) and len(box) == 4 and all(_is_number(v) for v in box) for box in listed):
        return None
    return [_box(box) for box in listed]


def _is_number(value: object) -> bool:
    # NaN and infinity are valid for json.loads and fail the comparison; so does an integer too large for a float.
    return type(value) in (int, float) and abs(value) <= _LARGEST  # type: ignore[arg-type]
