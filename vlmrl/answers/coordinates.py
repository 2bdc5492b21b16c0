"""Coordinates and times of foreign rows, in the frame, axis order and unit that the recipe or the row declares.

A frame is never guessed from the size of a number: `[0, 0, 500, 500]` is a box in pixels, in thousandths, and in nothing else that
one could tell them apart by. What is not declared, and what contradicts its declaration, is an error. Conversion happens once, when
a row is imported.

Pixels are those of the picture as it is shown (EXIF orientation applied), in its own size before any resizing. x points right, y
down. Values may leave their frame by a rounding error (half a pixel, 0.001 of a side) and are then set to its edge.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, get_args

from vlmrl.errors import RowError
from vlmrl.metrics.boxes import sides
from vlmrl.types import CoordinateFrame

Target = Literal["pixel", "norm1000"]
"""Frames that rows are converted to."""
Axis = Literal["xyxy", "yxyx", "xywh"]
TimeUnit = Literal["s", "ms", "mm:ss", "frames"]
Size = tuple[float, float]
"""Width and height in pixels."""

DIGITS = 2
"""Decimals that are kept of coordinates and seconds, so that the answer's text and the numbers that score it are the same."""
_SLACK: dict[CoordinateFrame, float] = {"pixel": 0.5, "norm1": 0.001, "norm1000": 1.0}
_CLOCK = re.compile(r"(?:(\d{1,3}):)?(\d{1,3}):(\d{1,2}(?:\.\d{1,9})?)")
_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s?(?:s|sec|secs|second|seconds)")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?")


def convert_box(
    values: object, *, frame: CoordinateFrame | None, axis: Axis | None, target: Target, size: Size | None = None, place: str = "box"
) -> list[float]:
    """Convert a box to the target frame.

    Args:
        values: four numbers in the order that `axis` says.
        axis: None is `xyxy`, the order that all rows in these shapes have unless they say otherwise.
        size: of the picture; needed unless both frames are normalised (and for `pixel` always, to check the range).

    Returns:
        [x1, y1, x2, y2] in the units of `target`, with at most two decimals.

    Raises:
        RowError: `frame` (not declared, or contradicted by the values), `bad_type`, `not_finite` or `bad_value` (no area).
    """
    numbers = _finite(values, 4, place)
    a, b, c, d = numbers
    order = axis or "xyxy"
    if order == "xywh":
        if c <= 0 or d <= 0:
            raise RowError("bad_value", f"{place}: {numbers} in the order xywh has no area; is the order xyxy?")
        a, b, c, d = a, b, a + c, b + d
    elif order == "yxyx":
        a, b, c, d = b, a, d, c
    if not (a < c and b < d):
        raise RowError("bad_value", f"{place}: {numbers} in the order {order} has no area; the corner with the smaller numbers comes first")
    return _converted([a, b, c, d], frame, target, size, place)


def convert_point(
    values: object, *, frame: CoordinateFrame | None, axis: Axis | None, target: Target, size: Size | None = None
) -> list[float]:
    """Convert a point to the target frame; `yxyx` means that y is given first.

    Returns:
        [x, y] in the units of `target`, with at most two decimals.

    Raises:
        RowError: as `convert_box`.
    """
    x, y = _finite(values, 2, "point")
    return _converted([y, x] if axis == "yxyx" else [x, y], frame, target, size, "point")


def convert_time(value: object, *, unit: TimeUnit | None, fps: float | None = None, place: str = "time") -> float:
    """Convert a time to seconds, rounded to two decimals.

    Text that carries its own unit (`1:02.5`, `0:01:02`, `12.5 s`) is read as such, whatever `unit` says of bare numbers.

    Raises:
        RowError: `time_unit` (a bare number without a declared unit, frames without their rate), `bad_type`, `bad_value` or
            `not_finite`.
    """
    if isinstance(value, str):
        text = value.strip().lower()
        clock, seconds = _CLOCK.fullmatch(text), _SECONDS.fullmatch(text)
        if clock:
            return _clock(clock, text, place)
        if seconds:
            return round(float(seconds.group(1)), DIGITS)
        if not _NUMBER.fullmatch(text):
            raise RowError("bad_value", f"{place}: {value[:60]!r} is not a time; known forms: 12.5, '12.5 s', 'mm:ss', 'h:mm:ss'")
        value = float(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError("bad_type", f"{place}: a time must be a number or text, got {type(value).__name__}")
    if not math.isfinite(value) or value < 0:
        raise RowError("bad_value", f"{place}: {value} is not a time from the start of the video")
    return round(_seconds(float(value), unit, fps, place), DIGITS)


def convert_span(values: object, *, unit: TimeUnit | None, fps: float | None = None) -> list[float]:
    """Convert a time span to [start, end] in seconds.

    Returns:
        [start, end], start < end, each rounded to two decimals.

    Raises:
        RowError: as `convert_time`; `bad_value` if the end is not after the start.
    """
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != 2:
        raise RowError("bad_type", f"a time span must be [start, end], got {str(values)[:60]}")
    start, end = (convert_time(value, unit=unit, fps=fps, place=f"time[{i}]") for i, value in enumerate(values))
    if not start < end:
        raise RowError("bad_value", f"time span {str(list(values))[:60]}: the end is not after the start (in seconds to 0.01)")
    return [start, end]


def plain(value: float) -> int | float:
    """Write a whole number without its `.0`, as a model would write it."""
    return int(value) if value == int(value) else value


def _finite(values: object, count: int, place: str) -> list[float]:
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != count:
        raise RowError("bad_type", f"{place}: expected {count} numbers, got {str(values)[:60]}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RowError("bad_type", f"{place}: expected {count} numbers, got {str(values)[:60]}")
        # written so that NaN is refused too
        if not abs(value) < 1e9:
            raise RowError("not_finite", f"{place}: {str(values)[:60]} holds a number that is no coordinate")
    return [float(value) for value in values]


def _converted(values: list[float], frame: CoordinateFrame | None, target: Target, size: Size | None, place: str) -> list[float]:
    """x, y, x, y ... checked against their frame and mapped."""
    if frame is None:
        known = ", ".join(get_args(CoordinateFrame))
        raise RowError("frame", f"{place}: nothing says which frame {values} are in; set 'frame' of the source to one of {known}")
    if size is None and "pixel" in (frame, target):
        raise RowError("frame", f"{place}: the size of the picture is needed for pixels and is not known")
    if size is not None and min(size) <= 0:
        raise RowError("bad_value", f"{place}: the picture has the size {size}")
    # (width, height) of the picture in both frames; without pixels they do not depend on its size
    edges, limits = sides(frame, size or (1.0, 1.0)), sides(target, size or (1.0, 1.0))
    out: list[float] = []
    for i, value in enumerate(values):
        edge, far = edges[i % 2], limits[i % 2]
        if not -_SLACK[frame] <= value <= edge + _SLACK[frame]:
            raise RowError("frame", f"{place}: {values} is outside of the frame '{frame}' (0 to {edge:g}); 'frame' or 'axis' is wrong")
        # within the slack, so set to the edge; then scaled by far / edge
        out.append(round(min(max(value, 0.0), edge) / edge * far, DIGITS))
    # asked again after rounding: a sliver can lose its area
    if len(out) == 4 and not (out[0] < out[2] and out[1] < out[3]):
        raise RowError("bad_value", f"{place}: {values} has no area left in the frame '{target}' at {DIGITS} decimals")
    return out


def _clock(match: re.Match[str], text: str, place: str) -> float:
    hours, minutes, seconds = int(match.group(1) or 0), int(match.group(2)), float(match.group(3))
    if seconds >= 60 or (match.group(1) is not None and minutes >= 60):
        raise RowError("bad_value", f"{place}: {text!r} has 60 or more seconds or minutes")
    return round(hours * 3600 + minutes * 60 + seconds, DIGITS)


def _seconds(value: float, unit: TimeUnit | None, fps: float | None, place: str) -> float:
    if unit is None:
        known = ", ".join(get_args(TimeUnit))
        raise RowError("time_unit", f"{place}: nothing says what {value:g} counts; set 'time_unit' of the source to one of {known}")
    if unit == "mm:ss":
        raise RowError("time_unit", f"{place}: 'time_unit' is mm:ss, but {value:g} is a bare number")
    if unit == "frames":
        if fps is None or not fps > 0:
            raise RowError("time_unit", f"{place}: times in frames need 'time_fps', the frames per second that they were counted at")
        return value / fps
    return value / 1000 if unit == "ms" else value
