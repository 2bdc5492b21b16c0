"""One object through a stretch of a video: `gt.tube` = {"time": [start, end], "boxes": {"<frame>": [x1, y1, x2, y2], ...}}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlmrl.answers import foreign
from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, scored
from vlmrl.answers.foreign import ForeignRow, Gold
from vlmrl.answers.ground_truth import check_span, check_track, object_of, required
from vlmrl.answers.time_span import SPAN_METRICS
from vlmrl.metrics.temporal import temporal_iou
from vlmrl.metrics.tracking import Over, Tube, parse_tube, track_iou, tube_of
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.answers.marks import Pen

_PARTS = ("time", "boxes")


def tube_overlap(pred: Tube | None, gold: Tube, *, over: Over, sort_times: bool = False) -> tuple[float, float]:
    """Compute temporal IoU and mean box IoU of a tube, each in [0, 1] and 0 for what the prediction does not give.

    Returns:
        (temporal IoU, mean box IoU).
    """
    if pred is None:
        return 0.0, 0.0
    when = 0.0 if pred.time is None or gold.time is None else temporal_iou(pred.time, gold.time, sort_times=sort_times)
    where = 0.0 if pred.boxes is None or gold.boxes is None else track_iou(pred.boxes, gold.boxes, over=over)
    return when, where


def _draw_tube(pen: Pen, value: Any) -> None:
    pen.tube(tube_of(value) if isinstance(value, Mapping) else None, "gt.tube")


@answer_type("spatio_temporal")
class SpatioTemporal(AnswerType):
    """A time span and boxes by frame, scored by vIoU: the mean box IoU over the frames of both tubes."""

    ask = 'JSON {"time": [start, end], "boxes": {"<frame>": [x1, y1, x2, y2], ...}}'
    main = "tube_iou"
    metrics = (Metric("tube_iou", "tube IoU", scored("tube_iou")), *SPAN_METRICS)
    right_at = 0.5
    in_frame = True
    draws = (("tube", _draw_tube),)

    def check(self, gt: Mapping[str, Any]) -> dict[str, Any]:
        tube = object_of(required(gt, "tube", self.name), "tube")
        check_span(tube.get("time"), "tube.time")
        check_track(tube.get("boxes"), "tube.boxes")
        return dict(gt)

    def write(self, gt: Mapping[str, Any]) -> str:
        return json.dumps(gt["tube"])

    def score(self, answer: str | None, sample: Sample) -> Scored:
        """Temporal IoU (reversed spans put in order) and mean box IoU over the frames of both tubes: vIoU.

        Raises:
            ValueError: `gt.tube` cannot be read.
        """
        gold = tube_of(sample.gt["tube"])
        if gold is None:
            raise ValueError(f"row '{sample.id}' ({sample.source}): gt.tube cannot be read")
        tube = None if answer is None else parse_tube(answer)
        when, where = tube_overlap(tube, gold, over="union", sort_times=True)
        return None if tube is None else (), (), {"tube_iou": where, "tiou": when}

    def draw(self, pen: Pen, answer: str) -> None:
        tube = parse_tube(answer)
        if tube is not None:
            pen.tube(tube, "answer")

    def convert(self, value: object, row: ForeignRow) -> Gold:
        parts = foreign.parts_of(value, _PARTS, self.name)
        foreign.require_video(row, self.name)
        foreign.require_parts(parts, _PARTS, self.name)
        boxes = foreign.track_of(parts["boxes"], row)
        tube = {"time": row.span(parts["time"]), "boxes": boxes}
        return Gold(answer=json.dumps(tube), gt={"tube": tube}, framed=True)
