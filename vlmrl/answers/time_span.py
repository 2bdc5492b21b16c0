"""A stretch of a video: `gt.time` = [start, end] in seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, at_least, scored
from vlmrl.answers.foreign import ForeignRow, Gold, json_of
from vlmrl.answers.ground_truth import check_span, list_of
from vlmrl.errors import RowError
from vlmrl.metrics.boxes import listed, numbers
from vlmrl.metrics.moments import moment_map
from vlmrl.metrics.temporal import parse_time_span, temporal_iou
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.answers.marks import Pen

SPAN_METRICS = (
    Metric("miou", "mIoU", scored("tiou")),
    *(Metric(f"r1@{t}", f"R1@{t}", at_least("tiou", t)) for t in (0.3, 0.5, 0.7)),
)
_TIME = r"([\d:.]+(?:\s?(?:seconds?|secs?|s))?)"
_SPAN = re.compile(rf"(?:from\s+)?{_TIME}\s*(?:to|and|-|–|—)\s*{_TIME}", re.IGNORECASE)


@answer_type("time_span")
class TimeSpan(AnswerType):
    """One time span, scored by temporal IoU."""

    ask = "the time span in seconds as 'start to end'"
    main = "tiou"
    metrics = SPAN_METRICS
    more_metrics = (Metric("moment_map", "moment mAP", scored("moment_map")),)
    right_at = 0.5
    reserved = ("time",)
    numbers_leak = True
    draws = (("time", lambda pen, value: pen.span(numbers(listed(value), 2), "gt.time")),)

    def check(self, gt: Mapping[str, Any]) -> dict[str, Any]:
        for i, window in enumerate(list_of(gt["windows"], "windows") if gt.get("windows") is not None else ()):
            check_span(window, f"windows[{i}]")
        return {**gt, "time": check_span(gt.get("time"), "time")}

    def write(self, gt: Mapping[str, Any]) -> str:
        return f"{gt['time'][0]:.2f} to {gt['time'][1]:.2f}"

    def score(
        self,
        answer: str | None,
        sample: Sample,
        *,
        take: Literal["first", "last"] = "last",
        decimals: int | None = None,
        sort_times: bool = True,
    ) -> Scored:
        """Temporal IoU; 0 for an answer that cannot be read.

        Options: which span of an answer with several counts, decimals that its times are rounded to, and whether a reversed span is put
        in order, as is usual in evaluation, or scores 0.

        Where the row lists all true windows (`gt.windows`), the one that fits best counts, and the mAP of QVHighlights is there as well.
        """
        gold = (float(sample.gt["time"][0]), float(sample.gt["time"][1]))
        pred = None if answer is None else parse_time_span(answer, take=take)
        if pred is not None and decimals is not None:
            # of the answer alone; the truth keeps its decimals
            pred = (round(pred[0], decimals), round(pred[1], decimals))
        windows = [(float(start), float(end)) for start, end in sample.gt.get("windows") or [gold]]
        scores = {"tiou": 0.0 if pred is None else max(temporal_iou(pred, window, sort_times=sort_times) for window in windows)}
        if "windows" in sample.gt:
            scores["moment_map"] = moment_map(windows, [] if pred is None else [pred])
        return pred, gold, scores

    def draw(self, pen: Pen, answer: str) -> None:
        pred = parse_time_span(answer)
        if pred is not None:
            pen.span(pred, "answer")

    def convert(self, value: object, row: ForeignRow) -> Gold:
        span = row.span(_span(value))
        return Gold(answer=self.write({"time": span}), gt={"time": span})


def _span(value: object) -> object:
    """[start, end] in whatever form the two times have."""
    if isinstance(value, str):
        text = value.strip()
        if text[:1] in ("{", "["):
            return _span(json_of(text))
        # bounds the work of the pattern; no gold span is that long
        match = _SPAN.fullmatch(text) if len(text) <= 200 else None
        if match is None:
            known = "'a to b', [a, b], {\"time\": [a, b]}"
            raise RowError("answer", f"the gold answer {text[:80]!r} is not a time span; known forms: {known}")
        return [match.group(1), match.group(2)]
    if isinstance(value, Mapping):
        if value.get("time") is None:
            raise RowError("missing_key", f"the gold answer has the keys {sorted(value)} and not 'time'")
        return _span(value["time"])
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        return value[0]
    return value
