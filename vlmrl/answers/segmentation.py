"""What a promptable segmenter is told about an object: `gt.segmentation` = {"boxes": [x1, y1, x2, y2], "positive_points": [[x, y], ...],
"negative_points": [[x, y], ...]}, of a video with "time": seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlmrl.answers import foreign
from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, scored
from vlmrl.answers.bbox import BOX_METRICS
from vlmrl.answers.coordinates import plain
from vlmrl.answers.foreign import ForeignRow, Gold
from vlmrl.answers.ground_truth import MOST_POINTS, check_box, check_points, number_of, object_of, required
from vlmrl.errors import RowError
from vlmrl.metrics.boxes import iou
from vlmrl.metrics.points import parse_segmentation, segmentation_of, segmentation_score
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.answers.marks import Pen

_POINTS = ("positive_points", "negative_points")


def _draw_segmentation(pen: Pen, value: Any) -> None:
    pen.segmentation(segmentation_of(value) if isinstance(value, Mapping) else None, "gt.segmentation")


@answer_type("segmentation")
class SegmentationPrompt(AnswerType):
    """A box with points on the object and beside it, scored as the reward `segmentation_points`, and by the IoU of the box."""

    ask = 'JSON {"boxes": [x1, y1, x2, y2], "positive_points": [[x, y], ...], "negative_points": [[x, y], ...]}'
    main = "segmentation"
    metrics = (Metric("segmentation", "box and points", scored("segmentation")), *BOX_METRICS)
    right_at = 0.5
    in_frame = True
    draws = (("segmentation", _draw_segmentation),)

    def check(self, gt: Mapping[str, Any]) -> dict[str, Any]:
        value = object_of(required(gt, "segmentation", self.name), "segmentation")
        check_box(value.get("boxes"), "segmentation.boxes")
        positive, negative = (check_points(value.get(key), f"segmentation.{key}") for key in _POINTS)
        if not 0 < positive <= positive + negative <= MOST_POINTS:
            counts = f"{positive} positive and {negative} negative points"
            raise RowError("bad_value", f"'gt.segmentation' has {counts}; 1 to {MOST_POINTS} in all")
        if value.get("time") is not None and number_of(value["time"], "segmentation.time") < 0:
            raise RowError("bad_value", f"'gt.segmentation.time' is {value['time']}; seconds are >= 0")
        return dict(gt)

    def write(self, gt: Mapping[str, Any]) -> str:
        return json.dumps(gt["segmentation"])

    def score(self, answer: str | None, sample: Sample) -> Scored:
        """The reward `segmentation_points`, and the IoU of the box.

        Raises:
            ValueError: `gt.segmentation` cannot be read.
        """
        gold = segmentation_of(sample.gt["segmentation"])
        if gold is None:
            raise ValueError(f"row '{sample.id}' ({sample.source}): gt.segmentation cannot be read")
        read = None if answer is None else parse_segmentation(answer)
        if read is None:
            return None, gold.box, {"segmentation": 0.0, "iou": 0.0}
        return read.box, gold.box, {"segmentation": segmentation_score(read, gold), "iou": iou(read.box, gold.box)}

    def draw(self, pen: Pen, answer: str) -> None:
        read = parse_segmentation(answer)
        if read is not None:
            pen.segmentation(read, "answer")

    def convert(self, value: object, row: ForeignRow) -> Gold:
        parts = foreign.parts_of(value, ("time", "boxes", *_POINTS), self.name)
        if row.videos + row.images != 1:
            what = f"the row has {row.images} image(s) and {row.videos} video(s)"
            raise RowError("answer", f"'{self.name}' is about one picture or video, {what}")
        if not row.videos and "time" in parts:
            raise RowError("answer", "the gold answer has a 'time', but the row shows a picture")
        # of a video also the moment, without which `segmentation_score` gives 0
        foreign.require_parts(parts, (*(("time",) if row.videos else ()), "boxes", *_POINTS), self.name)
        out: dict[str, Any] = {"time": plain(row.time(parts["time"]))} if "time" in parts else {}
        out["boxes"] = foreign.box_of(parts["boxes"], row, "boxes")
        for key in _POINTS:
            if not isinstance(parts[key], list):
                raise RowError("answer", f"'{key}' must be a list of points, got {str(parts[key])[:60]}")
            out[key] = [foreign.point_of(item, row, f"{key}[{i}]") for i, item in enumerate(parts[key])]
        return Gold(answer=json.dumps(out), gt={"segmentation": out}, framed=True)
