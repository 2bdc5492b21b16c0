"""One object through a video: `gt.track` = {"<frame>": [x1, y1, x2, y2], ...}. What frames count, the row says in `meta.track_unit`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlmrl.answers import foreign
from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, scored
from vlmrl.answers.foreign import ForeignRow, Gold
from vlmrl.answers.ground_truth import check_track, required
from vlmrl.metrics.tracking import parse_track, track_iou, track_of
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.answers.marks import Pen


@answer_type("tracking")
class Tracking(AnswerType):
    """Boxes by frame, scored by the mean IoU over the true frames."""

    ask = 'the boxes by frame as JSON {"boxes": {"<frame>": [x1, y1, x2, y2], ...}}'
    main = "track_iou"
    metrics = (Metric("track_iou", "track IoU", scored("track_iou")),)
    right_at = 0.5
    in_frame = True
    draws = (("track", lambda pen, value: pen.track(track_of(value), "gt.track")),)

    def check(self, gt: Mapping[str, Any]) -> dict[str, Any]:
        check_track(required(gt, "track", self.name), "track")
        return dict(gt)

    def write(self, gt: Mapping[str, Any]) -> str:
        return json.dumps({"boxes": gt["track"]})

    def score(self, answer: str | None, sample: Sample) -> Scored:
        """Mean IoU over the true frames, as the reward `tracking`."""
        gold = track_of(sample.gt["track"]) or {}
        track = None if answer is None else parse_track(answer)
        return None if track is None else (), (), {"track_iou": 0.0 if track is None else track_iou(track, gold, over="gold")}

    def draw(self, pen: Pen, answer: str) -> None:
        track = parse_track(answer)
        if track is not None:
            pen.track(track, "answer")

    def convert(self, value: object, row: ForeignRow) -> Gold:
        parts = foreign.parts_of(value, ("boxes",), self.name)
        foreign.require_video(row, self.name)
        foreign.require_parts(parts, ("boxes",), self.name)
        boxes = foreign.track_of(parts["boxes"], row)
        return Gold(answer=self.write({"track": boxes}), gt={"track": boxes}, framed=True)
