"""Temporal grounding: reading a time span from text, and temporal IoU. Shared by rewards and evaluation."""

from __future__ import annotations

import json
import re
from typing import Literal

Span = tuple[float, float]

_CAP = 4096
"""Characters of an answer that are looked at, from its end; from its start for its first span."""
_LARGEST = 1e9
"""Seconds. A larger number is not a time in a video."""
_TIME = r"(?<![\d.:])(?:\d{1,3}:){0,2}\d{1,9}(?:\.\d+)?(?!\d|[.:]\d)"
"""A whole number token: never the tail of a longer one, which would turn `3.33333333 to 5` into 3333333 to 5."""
_PAIR = re.compile(rf"({_TIME})\s?(?:s|sec|secs|second|seconds)?\s?(?:to|and|-|–|—)\s?({_TIME})", re.IGNORECASE)
_NUMBER = re.compile(_TIME)


def _seconds(text: str) -> float:
    """`12.5`, `00:12.5` or `1:02:03` as seconds."""
    total = 0.0
    for part in text.split(":"):
        total = total * 60 + float(part)
    return total


def parse_time_span(text: str, *, take: Literal["first", "last"] = "last") -> Span | None:
    """Read the time span that an answer gives, in seconds; None if it gives none.

    Taken in this order: the last (or first) `a to b` (also `a and b`, `a - b`, with `s` or `m:s` forms), JSON `{"time": [a, b]}`, the
    first two numbers. The order of the two is not changed. Linear in the length of the text.

    Returns:
        (first, second) time in seconds, in the order in which they stand.
    """
    tail = re.sub(r"\s+", " ", text[-_CAP:] if take == "last" else text[:_CAP])
    pairs = _PAIR.findall(tail)
    if pairs:
        pair = pairs[-1 if take == "last" else 0]
        return _seconds(pair[0]), _seconds(pair[1])
    found = _json_span(tail)
    if found is not None:
        return found
    numbers = _NUMBER.findall(tail)
    return (_seconds(numbers[0]), _seconds(numbers[1])) if len(numbers) >= 2 else None


def _json_span(text: str) -> Span | None:
    start = text.find("{")
    end = text.rfind("}")
    # The count of brackets bounds the depth: a model's `[[[[...` must not exhaust the stack of the JSON reader.
    if start < 0 or end <= start or text.count("{") > 8 or text.count("[") > 8:
        return None
    try:
        value = json.loads(text[start : end + 1])
    except ValueError:
        return None
    time = value.get("time") if isinstance(value, dict) else None
    # NaN and infinity are valid for json.loads and fail the comparison; so does an integer too large for a float.
    if isinstance(time, list) and len(time) == 2 and all(type(t) in (int, float) and abs(t) <= _LARGEST for t in time):
        return float(time[0]), float(time[1])
    return None


def temporal_iou(pred: Span, gt: Span, *, sort_times: bool) -> float:
    """Compute intersection over union of two spans in seconds.

    `sort_times` swaps a reversed prediction (evaluation); without it a reversed prediction scores 0 (reward).

    Returns:
        In [0, 1]; 0 if the union has no length.
    """
    (s, e), (s2, e2) = pred, gt
    if s > e:
        if not sort_times:
            return 0.0
        s, e = e, s
    # the hull of both; for disjoint spans it is longer than their union, but the numerator is 0 then
    union = max(e, e2) - min(s, s2)
    return max(0.0, min(e, e2) - max(s, s2)) / union if union > 0 else 0.0
