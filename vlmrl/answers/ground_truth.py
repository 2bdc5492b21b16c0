"""Readers of a row's `gt` that answer types share: numbers, points, boxes, tracks. Each names the key at fault.

Coordinates are >= 0, in the frame that the row states in `meta.frame`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vlmrl.errors import RowError

MOST_POINTS = 60
MOST_FRAMES = 256
"""What the readers of answers accept, so that a gold answer can be read."""
LARGEST = 1e9
"""What the readers of answers take for a coordinate or a time."""
_FRAME = re.compile(r"\d{1,9}(?:\.\d{1,6})?")


def numbers_of(value: object, key: str, count: int) -> list[float]:
    """Read a list of `count` numbers.

    Returns:
        The numbers as floats.

    Raises:
        RowError: `missing_key`, `bad_type` or `bad_value`.
    """
    if value is None:
        raise RowError("missing_key", f"'gt.{key}' is missing")
    # `type(v) in`, not isinstance: True would pass as 1
    if not isinstance(value, list) or len(value) != count or not all(type(v) in (int, float) for v in value):
        raise RowError("bad_type", f"'gt.{key}' must be a list of {count} number(s), got {str(value)[:60]}")
    if any(abs(v) > LARGEST for v in value):
        raise RowError("bad_value", f"'gt.{key}' has a number beyond {LARGEST:g}, got {str(value)[:60]}")
    return [float(v) for v in value]


def number_of(value: object, key: str) -> float:
    """Read one number.

    Raises:
        RowError: `bad_type` or `bad_value`.
    """
    if type(value) not in (int, float):
        raise RowError("bad_type", f"'gt.{key}' must be a number, got {str(value)[:60]}")
    return numbers_of([value], key, 1)[0]


def list_of(value: object, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise RowError("bad_type", f"'gt.{key}' must be a list, got {str(value)[:60]}")
    return value


def object_of(value: object, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RowError("bad_type", f"'gt.{key}' must be an object, got {str(value)[:60]}")
    return value


def required(gt: Mapping[str, Any], key: str, answer_type: str) -> Any:
    """Read the value of a key that rows of this type must have.

    Returns:
        The value, which is not None and else unchecked.

    Raises:
        RowError: `missing_key`.
    """
    if gt.get(key) is None:
        raise RowError("missing_key", f"'gt.{key}' is missing; rows of answer type '{answer_type}' need it")
    return gt[key]


def check_span(value: object, key: str) -> list[float]:
    """Check [start, end] in seconds.

    Returns:
        [start, end], 0 <= start < end.

    Raises:
        RowError: as `numbers_of`, and `bad_value` for another order.
    """
    start, end = numbers_of(value, key, 2)
    if not 0 <= start < end:
        raise RowError("bad_value", f"'gt.{key}' is [{start}, {end}]; it must be [start, end] in seconds with 0 <= start < end")
    return [start, end]


def check_box(value: object, key: str) -> None:
    x1, y1, x2, y2 = numbers_of(value, key, 4)
    if not (0 <= x1 < x2 and 0 <= y1 < y2):
        raise RowError("bad_value", f"'gt.{key}' is {value}; it must be [x1, y1, x2, y2], 0 <= x1 < x2, 0 <= y1 < y2")


def check_points(value: object, key: str) -> int:
    """Check a list of points, and count them.

    Returns:
        How many there are, at most `MOST_POINTS`.

    Raises:
        RowError: as `numbers_of`, and `bad_value` for too many or negative ones.
    """
    points = [numbers_of(item, f"{key}[{i}]", 2) for i, item in enumerate(list_of(value, key))]
    if len(points) > MOST_POINTS or any(min(point) < 0 for point in points):
        raise RowError("bad_value", f"'gt.{key}' must be at most {MOST_POINTS} points [x, y] with coordinates >= 0")
    return len(points)


def check_track(value: object, key: str) -> None:
    """Check {"<frame>": [x1, y1, x2, y2], ...}."""
    track = object_of(value, key)
    if not 0 < len(track) <= MOST_FRAMES:
        raise RowError("bad_value", f"'gt.{key}' has {len(track)} frames; there must be 1 to {MOST_FRAMES}")
    for frame, box in track.items():
        if not _FRAME.fullmatch(frame):
            raise RowError("bad_value", f"'gt.{key}' has the frame {frame[:40]!r}; a frame is a number, as text")
        check_box(box, f"{key}.{frame}")
    # "1" and "1.0" are different keys and the same frame
    if len({float(frame) for frame in track}) < len(track):
        raise RowError("bad_value", f"'gt.{key}' names a frame twice")
