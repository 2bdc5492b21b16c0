"""Highlights of a video: `gt.highlights` = [[seconds, saliency], ...], at most one per clip.

`gt.clip_seconds` where a clip is not two seconds long; for the metrics of QVHighlights also `gt.saliency` = {"duration": seconds,
"clips": [...], "scores": [[0-4 per annotator], ...]}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, scored
from vlmrl.answers.ground_truth import list_of, number_of, numbers_of, object_of, required
from vlmrl.errors import RowError
from vlmrl.metrics.boxes import listed
from vlmrl.metrics.moments import (
    CLIP,
    HighlightQuery,
    clip_scores,
    highlight_average_precision,
    highlight_hit,
    highlight_score,
    highlights_of,
    parse_highlights,
)
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.answers.marks import Pen

MOST_HIGHLIGHTS = 128
"""What the reader of answers accepts."""
SHORTEST_CLIP = 0.01
MOST_CLIPS = 100_000


def _draw_highlights(pen: Pen, value: Any) -> None:
    pen.highlights(highlights_of([listed(pair) for pair in listed(value)]), "gt.highlights")


@answer_type("highlight")
class Highlights(AnswerType):
    """Moments with a saliency each, scored as the reward `highlight` does, and as QVHighlights does where the row allows it."""

    ask = 'the highlights as JSON {"highlights": [[seconds, saliency], ...]}'
    main = "highlight"
    metrics = (
        Metric("highlight", "highlights", scored("highlight")),
        Metric("highlight_f2", "highlight F2", scored("highlight_f2")),
        Metric("highlight_hit1", "HIT@1", scored("highlight_hit1")),
        Metric("highlight_map", "highlight mAP", scored("highlight_map")),
    )
    numbers_leak = True
    draws = (("highlights", _draw_highlights),)
    drawn_with = ("clip_seconds",)

    def check(self, gt: Mapping[str, Any]) -> dict[str, Any]:
        value = required(gt, "highlights", self.name)
        clip = CLIP if gt.get("clip_seconds") is None else number_of(gt["clip_seconds"], "clip_seconds")
        if clip < SHORTEST_CLIP:
            raise RowError("bad_value", f"'gt.clip_seconds' is {clip}; it must be at least {SHORTEST_CLIP}")
        _check_highlights(value, clip)
        if gt.get("saliency") is not None:
            _check_saliency(object_of(gt["saliency"], "saliency"), clip)
        return dict(gt)

    def write(self, gt: Mapping[str, Any]) -> str:
        return json.dumps({"highlights": gt["highlights"]})

    def score(self, answer: str | None, sample: Sample) -> Scored:
        """Score and F2 of the reward `highlight`; with `gt.saliency` also HIT@1 and mAP of QVHighlights at "Very Good".

        HIT@1 of an answer that cannot be read is 0; its mAP is that of equal scores for all clips, as the metric defines it.
        """
        gold = [(float(t), float(s)) for t, s in sample.gt["highlights"]]
        read = None if answer is None else parse_highlights(answer)
        clip = float(sample.gt.get("clip_seconds") or CLIP)
        found = highlight_score(read or (), gold, clip=clip)
        scores = {"highlight": found["score"], "highlight_f2": found["f2"]}
        saliency = sample.gt.get("saliency")
        if saliency is not None:
            clips = clip_scores(read or (), float(saliency["duration"]), clip=clip)
            query = HighlightQuery(scores=clips, clips=saliency["clips"], saliency=saliency["scores"])
            per_annotator = highlight_average_precision(query)
            # without an answer all clips have one score, and HIT@1 would look at the first of them
            scores["highlight_hit1"] = 0.0 if read is None else highlight_hit(query)
            scores["highlight_map"] = sum(per_annotator) / len(per_annotator)
        flat = tuple(v for pair in gold for v in pair)
        return None if read is None else tuple(v for pair in read for v in pair), flat, scores

    def draw(self, pen: Pen, answer: str) -> None:
        pen.highlights(parse_highlights(answer) or (), "answer")


def _check_highlights(value: object, clip: float) -> None:
    pairs = [numbers_of(item, f"highlights[{i}]", 2) for i, item in enumerate(list_of(value, "highlights"))]
    if not 0 < len(pairs) <= MOST_HIGHLIGHTS:
        raise RowError("bad_value", f"'gt.highlights' has {len(pairs)} entries; there must be 1 to {MOST_HIGHLIGHTS}")
    if any(min(pair) < 0 for pair in pairs) or not any(saliency > 0 for _, saliency in pairs):
        raise RowError("bad_value", "'gt.highlights' are [seconds, saliency] >= 0, with a saliency above 0 among them")
    # scoring compares clips: of two saliencies for one clip neither is the true one
    if len({int(seconds // clip) for seconds, _ in pairs}) < len(pairs):
        raise RowError("bad_value", f"'gt.highlights' has two times in one clip of {clip:g} s; say another length in 'gt.clip_seconds'")


def _check_saliency(saliency: Mapping[str, Any], clip: float) -> None:
    duration = number_of(saliency.get("duration"), "saliency.duration")
    clips, scores = list_of(saliency.get("clips"), "saliency.clips"), list_of(saliency.get("scores"), "saliency.scores")
    rows = [list_of(row, f"saliency.scores[{i}]") for i, row in enumerate(scores)]
    if not clip <= duration <= MOST_CLIPS * clip:
        raise RowError("bad_value", f"'gt.saliency.duration' is {duration}; it must be 1 to {MOST_CLIPS} clips of {clip:g} s")
    if not clips or len(clips) != len(rows) or not all(type(c) is int and 0 <= c < int(duration / clip) for c in clips):
        raise RowError("bad_value", "'gt.saliency.clips' must be indices of clips within 'duration', one per entry of 'scores'")
    # averaged over annotators, each of whom has rated every relevant clip
    width = len(rows[0])
    if not width or not all(len(row) == width and all(type(v) is int and 0 <= v <= 4 for v in row) for row in rows):
        raise RowError("bad_value", "'gt.saliency.scores' must have the same annotators in each entry, with whole numbers 0 to 4")
