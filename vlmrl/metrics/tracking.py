"""Tracks (a box per frame) and tubes (a time span with a track): reading them from text, and their overlap (vIoU).

An answer is `{"boxes": {"<frame>": [x1, y1, x2, y2], ...}}`, of a tube with `"time": [start, end]` in seconds. Frames are numbers, as
the row counts them (an index, or seconds): "1", "01" and "1.0" are one frame. Boxes are in the frame of reference of the row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vlmrl.metrics.boxes import Box, iou, json_object, numbers
from vlmrl.metrics.temporal import Span

Track = dict[float, Box]
Over = Literal["gold", "common", "union"]
MOST_FRAMES = 256
"""Boxes of one answer that are read; an answer with more is not readable."""
_CAP = 16384
_FRAME = re.compile(r"\d{1,9}(?:\.\d{1,6})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tube:
    """When and where a thing is."""

    time: Span | None
    """Seconds; None if an answer gives none."""
    boxes: Track | None
    """None if an answer gives none."""


def track_of(value: object) -> Track | None:
    """Read a JSON object of frames and boxes as a track; None if it is anything else, or names a frame twice. Corners are not ordered."""
    if not isinstance(value, Mapping) or len(value) > MOST_FRAMES:
        return None
    out: Track = {}
    for key, item in value.items():
        box = numbers(item, 4)
        # one bad frame makes the track unreadable: skipped, it could leave only the frames that fit
        if box is None or not isinstance(key, str) or not _FRAME.fullmatch(key.strip()) or float(key) in out:
            return None
        out[float(key)] = (box[0], box[1], box[2], box[3])
    return out


def parse_track(text: str) -> Track | None:
    """Read the track that an answer gives; None if it gives none."""
    value = _object(text)
    return None if value is None else track_of(value.get("boxes"))


def tube_of(value: Mapping[str, Any]) -> Tube | None:
    """Read `{"time": [start, end], "boxes": {...}}` as a tube; None if neither can be read. The order of the times is not changed."""
    time, boxes = numbers(value.get("time"), 2), track_of(value.get("boxes"))
    if time is None and boxes is None:
        return None
    return Tube(time=None if time is None else (time[0], time[1]), boxes=boxes)


def parse_tube(text: str) -> Tube | None:
    """Read the tube that an answer gives, as far as it can be read."""
    value = _object(text)
    return None if value is None else tube_of(value)


def _object(text: str) -> dict[str, Any] | None:
    return json_object(text, brackets=MOST_FRAMES + 2, cap=_CAP)


def track_iou(pred: Track, gold: Track, *, over: Over) -> float:
    """Average IoU per frame; a frame that one of the two lacks counts 0.

    `over` says which frames are averaged. `union`: all of both (vIoU of spatio-temporal grounding, for tracks that cover their time
    span); `gold`: the true ones (the tracking reward of arXiv:2512.03043); `common`: those of both, so that frames which the
    prediction leaves out cost nothing (its spatio-temporal reward).

    Returns:
        In [0, 1]; no frames at all give 0.
    """
    frames = {"gold": gold.keys(), "common": pred.keys() & gold.keys(), "union": pred.keys() | gold.keys()}[over]
    return sum(iou(pred[f], gold[f]) for f in frames if f in pred and f in gold) / len(frames) if frames else 0.0
