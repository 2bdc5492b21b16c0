"""Boxes in a picture: `gt.boxes` = [[x1, y1, x2, y2], ...], at least one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, at_least, scored
from vlmrl.answers.foreign import BOX_KEYS, ForeignRow, Gold, json_of, lists_of
from vlmrl.answers.ground_truth import check_box
from vlmrl.errors import RowError
from vlmrl.metrics.boxes import Box, listed, matched_score, numbers, parse_boxes
from vlmrl.metrics.points import points_of
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.answers.marks import Pen

BOX_METRICS = (Metric("box_iou", "box IoU", scored("iou")), Metric("box_r@0.5", "box R@0.5", at_least("iou", 0.5)))


def gold_boxes(sample: Sample) -> list[Box]:
    """Read `gt.boxes` of a row."""
    return [(float(x1), float(y1), float(x2), float(y2)) for x1, y1, x2, y2 in sample.gt["boxes"]]


def _draw_boxes(pen: Pen, value: Any) -> None:
    pen.boxes([numbers(listed(box), 4) for box in listed(value) or [None]], "gt.boxes")


def _draw_polygons(pen: Pen, value: Any) -> None:
    for i, ring in enumerate(listed(value)):
        pen.polygon(points_of([listed(point) for point in listed(ring)]), f"gt.polygons[{i}]")


@answer_type("bbox")
class Boxes(AnswerType):
    """Boxes, scored by the IoU of the best one-to-one assignment over the longer list. All are in the frame of the row (`meta.frame`)."""

    ask = 'the boxes as JSON {"boxes": [[x1, y1, x2, y2], ...]}'
    main = "iou"
    metrics = BOX_METRICS
    right_at = 0.5
    in_frame = True
    numbers_leak = True
    draws = (("boxes", _draw_boxes), ("polygons", _draw_polygons))

    def check(self, gt: Mapping[str, Any]) -> dict[str, Any]:
        boxes = gt.get("boxes")
        if not isinstance(boxes, list) or not boxes:
            raise RowError("missing_key", "'gt.boxes' must be a list of [x1, y1, x2, y2] with at least one box")
        for i, box in enumerate(boxes):
            check_box(box, f"boxes[{i}]")
        return dict(gt)

    def write(self, gt: Mapping[str, Any]) -> str:
        return json.dumps({"boxes": gt["boxes"]})

    def score(self, answer: str | None, sample: Sample) -> Scored:
        gold = gold_boxes(sample)
        boxes = None if answer is None else parse_boxes(answer)
        pred = None if boxes is None else tuple(v for box in boxes for v in box)
        return pred, tuple(v for box in gold for v in box), {"iou": 0.0 if boxes is None else matched_score(boxes, gold)}

    def draw(self, pen: Pen, answer: str) -> None:
        pen.boxes(parse_boxes(answer) or (), "answer")

    def convert(self, value: object, row: ForeignRow) -> Gold:
        boxes = [row.coordinates(box, f"box {i}") for i, box in enumerate(lists_of(json_of(value), BOX_KEYS))]
        if any(len(box) != 4 for box in boxes):
            raise RowError("answer", f"a box has four numbers, got {boxes}")
        return Gold(answer=self.write({"boxes": boxes}), gt={"boxes": boxes}, framed=True)
