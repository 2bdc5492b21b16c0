"""Points in a picture: `gt.points` = [[x, y], ...], `gt.boxes` that the point must lie in, or `gt.mask` = {"size": [H, W],
"counts": [...]} that points must lie on.

A mask (`metrics.points.decode_mask`) covers the whole picture, at any size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, scored
from vlmrl.answers.bbox import gold_boxes
from vlmrl.answers.coordinates import DIGITS, plain
from vlmrl.answers.foreign import BOX_KEYS, ForeignRow, Gold, json_of, lists_of
from vlmrl.answers.frame import sides_of
from vlmrl.answers.ground_truth import check_box, check_points, list_of, object_of
from vlmrl.errors import RowError
from vlmrl.metrics.boxes import Point, listed, point_in_box
from vlmrl.metrics.gui import RADIUS, Action, arguments_score, to_norm1000
from vlmrl.metrics.points import decode_mask, parse_points, points_of, share_in_mask
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.answers.marks import Pen

MOST_PIXELS = 1 << 26
"""What the reader of masks accepts."""
_KEYS = ("points", "point", "point_2d")


def one_point(text: str) -> Point | None:
    """Read the point of an answer that gives exactly one.

    Returns:
        (x, y) in the frame of the row; None for no point, several, or text that cannot be read.
    """
    points = parse_points(text)
    return points[0] if points is not None and len(points) == 1 else None


def mask_score(sample: Sample) -> Callable[[str], float]:
    """Make the score of an answer: the share of its points that lie on the row's `gt.mask`.

    Returns:
        (text of an answer) -> share in [0, 1]; 0 for an answer without readable points.

    Raises:
        ValueError: the row states no frame, or its mask is malformed.
    """
    mask = decode_mask(sample.gt["mask"])
    height, width = mask.shape
    side = sides_of(sample)

    def score(text: str) -> float:
        # from the row's frame to cells of the mask, which has a size of its own
        return share_in_mask([(x * width / side[0], y * height / side[1]) for x, y in parse_points(text) or ()], mask)

    return score


def pointing_score(text: str, sample: Sample) -> float:
    """Score an answer in [0, 1]: the share of its points on `gt.mask`, else whether its one point lies in one of `gt.boxes`,
    else within `metrics.gui.RADIUS` of one of `gt.points`.

    Raises:
        ValueError: the row has none of the three, or lacks the frame or size that its kind needs.
    """
    if sample.gt.get("mask") is not None:
        return mask_score(sample)(text)
    point = one_point(text)
    if sample.gt.get("boxes"):
        return float(point is not None and any(point_in_box(point, box) for box in gold_boxes(sample)))
    if not sample.gt.get("points"):
        raise ValueError(f"row '{sample.id}' ({sample.source}): a point row needs gt.points, gt.boxes or gt.mask to be scored")
    side = sides_of(sample)
    if point is None:
        return 0.0
    # by the rule for clicks, whose radius is in thousandths of each side
    pred = to_norm1000(Action(kind="click", point=point), side)
    golds = [to_norm1000(Action(kind="click", point=(float(x), float(y))), side) for x, y in sample.gt["points"]]
    return max(arguments_score(pred, gold, radius=RADIUS) or 0.0 for gold in golds)


def _draw_points(pen: Pen, value: Any) -> None:
    pen.points(points_of([listed(point) for point in listed(value) or [None]]), "gt.points")


def _draw_mask(pen: Pen, value: Any) -> None:
    pen.mask(value)


@answer_type("point")
class Points(AnswerType):
    """Points, scored by what the row gives: on its mask, in one of its boxes, or near one of its points."""

    ask = "the point as [x, y]"
    main = "point"
    metrics = (Metric("point", "pointing", scored("point")),)
    in_frame = True
    numbers_leak = True
    draws = (("points", _draw_points), ("mask", _draw_mask))

    def check(self, gt: Mapping[str, Any]) -> dict[str, Any]:
        if gt.get("points") is not None and not check_points(gt["points"], "points"):
            raise RowError("bad_value", "'gt.points' is empty")
        for i, box in enumerate(list_of(gt.get("boxes") or [], "boxes")):
            check_box(box, f"boxes[{i}]")
        if gt.get("mask") is not None:
            _check_mask(object_of(gt["mask"], "mask"))
        return dict(gt)

    def write(self, gt: Mapping[str, Any]) -> str | None:
        """None for a point that may lie anywhere in a box or on a mask."""
        return json.dumps({"points": gt["points"]}) if gt.get("points") else None

    def score(self, answer: str | None, sample: Sample) -> Scored:
        points = None if answer is None else parse_points(answer)
        pred = None if points is None else tuple(v for point in points for v in point)
        gold = tuple(float(v) for point in sample.gt.get("points") or () for v in point)
        return pred, gold, {"point": pointing_score(answer or "", sample)}

    def draw(self, pen: Pen, answer: str) -> None:
        pen.points(parse_points(answer) or (), "answer")

    def convert(self, value: object, row: ForeignRow) -> Gold:
        """True points; or true boxes that a point must lie in, of which the first one's centre is the answer."""
        items = lists_of(json_of(value), (*_KEYS, *BOX_KEYS))
        read = [row.coordinates(item, f"point {i}") for i, item in enumerate(items)]
        if len({len(item) for item in read}) != 1:
            raise RowError("answer", f"the gold answer holds points and boxes, which must not be mixed: {read}")
        if len(read[0]) == 4:
            x1, y1, x2, y2 = read[0]
            centre = [plain(round((x1 + x2) / 2, DIGITS)), plain(round((y1 + y2) / 2, DIGITS))]
            return Gold(answer=json.dumps(centre), gt={"boxes": read}, framed=True)
        return Gold(answer=json.dumps(read[0] if len(read) == 1 else {"points": read}), gt={"points": read}, framed=True)


def _check_mask(mask: Mapping[str, Any]) -> None:
    size, counts = mask.get("size"), mask.get("counts")
    whole = all(isinstance(v, list) and all(type(n) is int and n >= 0 for n in v) for v in (size, counts))
    if not whole or not isinstance(size, list) or len(size) != 2 or not isinstance(counts, list):
        raise RowError("bad_type", "'gt.mask' must be {'size': [height, width], 'counts': run lengths}, whole numbers >= 0")
    # runs of clear and set cells in turn, so `counts[1::2]` are the set ones
    if not 1 <= size[0] * size[1] <= MOST_PIXELS or sum(counts) != size[0] * size[1] or not any(counts[1::2]):
        raise RowError("bad_value", f"'gt.mask.counts' must sum to the pixels of size {size} (1 to {MOST_PIXELS}), some of them inside")
