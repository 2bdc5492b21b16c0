"""Ground truth of pointing, highlights, tracks, tubes and segmentation prompts: checks, and the answers built from it.

    point            gt.points: [[x, y], ...], gt.boxes: [[x1, y1, x2, y2], ...] or gt.mask: {"size": [H, W], "counts": [...]}
    highlight        gt.highlights: [[seconds, saliency], ...], at most one per clip; gt.clip_seconds where a clip is not two seconds
                     long; for the metrics of QVHighlights also
                     gt.saliency: {"duration": seconds, "clips": [...], "scores": [[0-4 per annotator], ...]}
    tracking         gt.track: {"<frame>": [x1, y1, x2, y2], ...}
    spatio_temporal  gt.tube: {"time": [start, end], "boxes": {"<frame>": [x1, y1, x2, y2], ...}}
    segmentation     gt.segmentation: {"boxes": [x1, y1, x2, y2], "positive_points": [[x, y], ...], "negative_points": [[x, y], ...]},
                     of a video with "time": seconds

Coordinates are >= 0, in the frame that the row states in `meta.frame`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vlmrl.errors import RowError

KEYS = {"highlight": "highlights", "tracking": "track", "spatio_temporal": "tube", "segmentation": "segmentation"}
"""Answer type -> the key of `gt` that it must have."""
MOST_POINTS = 60
MOST_HIGHLIGHTS = 128
MOST_FRAMES = 256
MOST_PIXELS = 1 << 26
"""What the readers of answers accept, so that a gold answer can be read."""
CLIP = 2.0
"""Seconds of a clip of QVHighlights."""
SHORTEST_CLIP = 0.01
MOST_CLIPS = 100_000
LARGEST = 1e9
"""What the readers of answers take for a coordinate or a time."""
_FRAME = re.compile(r"\d{1,9}(?:\.\d{1,6})?")


def check_visual(gt: Mapping[str, Any], answer_type: str) -> None:
    """Whether `gt` holds what its answer type needs; other types pass.

    Raises:
        RowError: `missing_key`, `bad_type` or `bad_value`, with the key.
    """
    if answer_type == "point":
        _check_pointing(gt)
        return
    key = KEYS.get(answer_type)
    if key is None:
        return
    if gt.get(key) is None:
        raise RowError("missing_key", f"'gt.{key}' is missing; rows of answer type '{answer_type}' need it")
    value = gt[key]
    if answer_type == "highlight":
        (clip,) = _numbers([gt["clip_seconds"]], "clip_seconds", 1) if gt.get("clip_seconds") is not None else [CLIP]
        if clip < SHORTEST_CLIP:
            raise RowError("bad_value", f"'gt.clip_seconds' is {clip}; it must be at least {SHORTEST_CLIP}")
        _check_highlights(value, clip)
        if gt.get("saliency") is not None:
            _check_saliency(gt["saliency"], clip)
    elif answer_type == "tracking":
        _check_track(value, "track")
    elif answer_type == "spatio_temporal":
        _check_tube(_object(value, "tube"))
    else:
        _check_segmentation(_object(value, "segmentation"))


def visual_answer(gt: Mapping[str, Any], answer_type: str) -> str | None:
    """The gold answer as text, for checked ground truth; None if it does not determine one (a point somewhere in a box)."""
    if answer_type == "point":
        return json.dumps({"points": gt["points"]}) if gt.get("points") else None
    if answer_type == "tracking":
        return json.dumps({"boxes": gt["track"]})
    if answer_type == "highlight":
        return json.dumps({"highlights": gt["highlights"]})
    return json.dumps(gt[KEYS[answer_type]]) if answer_type in KEYS else None


def _check_pointing(gt: Mapping[str, Any]) -> None:
    if gt.get("points") is not None and not _points(gt["points"], "points"):
        raise RowError("bad_value", "'gt.points' is empty")
    for i, box in enumerate(_list(gt.get("boxes") or [], "boxes")):
        _box(box, f"boxes[{i}]")
    if gt.get("mask") is None:
        return
    mask = _object(gt["mask"], "mask")
    size, counts = mask.get("size"), mask.get("counts")
    whole = all(isinstance(v, list) and all(type(n) is int and n >= 0 for n in v) for v in (size, counts))
    if not whole or not isinstance(size, list) or len(size) != 2 or not isinstance(counts, list):
        raise RowError("bad_type", "'gt.mask' must be {'size': [height, width], 'counts': run lengths}, whole numbers >= 0")
    if not 1 <= size[0] * size[1] <= MOST_PIXELS or sum(counts) != size[0] * size[1] or not any(counts[1::2]):
        raise RowError("bad_value", f"'gt.mask.counts' must sum to the pixels of size {size} (1 to {MOST_PIXELS}), some of them inside")


def _check_highlights(value: object, clip: float) -> None:
    pairs = [_numbers(item, f"highlights[{i}]", 2) for i, item in enumerate(_list(value, "highlights"))]
    if not 0 < len(pairs) <= MOST_HIGHLIGHTS:
        raise RowError("bad_value", f"'gt.highlights' has {len(pairs)} entries; there must be 1 to {MOST_HIGHLIGHTS}")
    if any(min(pair) < 0 for pair in pairs) or not any(saliency > 0 for _, saliency in pairs):
        raise RowError("bad_value", "'gt.highlights' are [seconds, saliency] >= 0, with a saliency above 0 among them")
    if len({int(seconds // clip) for seconds, _ in pairs}) < len(pairs):
        raise RowError("bad_value", f"'gt.highlights' has two times in one clip of {clip:g} s; say another length in 'gt.clip_seconds'")


def _check_saliency(value: object, clip: float) -> None:
    saliency = _object(value, "saliency")
    (duration,) = _numbers([saliency.get("duration")], "saliency.duration", 1)
    clips, scores = _list(saliency.get("clips"), "saliency.clips"), _list(saliency.get("scores"), "saliency.scores")
    rows = [_list(row, f"saliency.scores[{i}]") for i, row in enumerate(scores)]
    if not clip <= duration <= MOST_CLIPS * clip:
        raise RowError("bad_value", f"'gt.saliency.duration' is {duration}; it must be 1 to {MOST_CLIPS} clips of {clip:g} s")
    if not clips or len(clips) != len(rows) or not all(type(c) is int and 0 <= c < int(duration / clip) for c in clips):
        raise RowError("bad_value", "'gt.saliency.clips' must be indices of clips within 'duration', one per entry of 'scores'")
    width = len(rows[0])
    if not width or not all(len(row) == width and all(type(v) is int and 0 <= v <= 4 for v in row) for row in rows):
        raise RowError("bad_value", "'gt.saliency.scores' must have the same annotators in each entry, with whole numbers 0 to 4")


def _check_tube(tube: Mapping[str, Any]) -> None:
    start, end = _numbers(tube.get("time"), "tube.time", 2)
    if not 0 <= start < end:
        raise RowError("bad_value", f"'gt.tube.time' is [{start}, {end}]; it must be [start, end] in seconds with 0 <= start < end")
    _check_track(tube.get("boxes"), "tube.boxes")


def _check_track(value: object, key: str) -> None:
    track = _object(value, key)
    if not 0 < len(track) <= MOST_FRAMES:
        raise RowError("bad_value", f"'gt.{key}' has {len(track)} frames; there must be 1 to {MOST_FRAMES}")
    for frame, box in track.items():
        if not _FRAME.fullmatch(frame):
            raise RowError("bad_value", f"'gt.{key}' has the frame {frame[:40]!r}; a frame is a number, as text")
        _box(box, f"{key}.{frame}")
    if len({float(frame) for frame in track}) < len(track):
        raise RowError("bad_value", f"'gt.{key}' names a frame twice")


def _check_segmentation(value: Mapping[str, Any]) -> None:
    _box(value.get("boxes"), "segmentation.boxes")
    positive = _points(value.get("positive_points"), "segmentation.positive_points")
    negative = _points(value.get("negative_points"), "segmentation.negative_points")
    if not 0 < positive <= positive + negative <= MOST_POINTS:
        raise RowError("bad_value", f"'gt.segmentation' has {positive} positive and {negative} negative points; 1 to {MOST_POINTS} in all")
    if value.get("time") is not None and _numbers([value["time"]], "segmentation.time", 1)[0] < 0:
        raise RowError("bad_value", f"'gt.segmentation.time' is {value['time']}; seconds are >= 0")


def _points(value: object, key: str) -> int:
    """How many points it has."""
    points = [_numbers(item, f"{key}[{i}]", 2) for i, item in enumerate(_list(value, key))]
    if len(points) > MOST_POINTS or any(min(point) < 0 for point in points):
        raise RowError("bad_value", f"'gt.{key}' must be at most {MOST_POINTS} points [x, y] with coordinates >= 0")
    return len(points)


def _box(value: object, key: str) -> None:
    x1, y1, x2, y2 = _numbers(value, key, 4)
    if not (0 <= x1 < x2 and 0 <= y1 < y2):
        raise RowError("bad_value", f"'gt.{key}' is {value}; it must be [x1, y1, x2, y2], 0 <= x1 < x2, 0 <= y1 < y2")


def _numbers(value: object, key: str, count: int) -> list[float]:
    if not isinstance(value, list) or len(value) != count or not all(type(v) in (int, float) for v in value):
        raise RowError("bad_type", f"'gt.{key}' must be {count} number(s), got {str(value)[:60]}")
    if any(abs(v) > LARGEST for v in value):
        raise RowError("bad_value", f"'gt.{key}' has a number beyond {LARGEST:g}, got {str(value)[:60]}")
    return [float(v) for v in value]


def _list(value: object, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise RowError("bad_type", f"'gt.{key}' must be a list, got {str(value)[:60]}")
    return value


def _object(value: object, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowError("bad_type", f"'gt.{key}' must be an object, got {str(value)[:60]}")
    return value
