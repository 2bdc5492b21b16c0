"""The coordinate frame that a row states in `meta.frame`, and the sides of its picture in that frame. Nothing is guessed from numbers."""

from __future__ import annotations

from typing import Any, get_args

from vlmrl.metrics.boxes import sides
from vlmrl.types import CoordinateFrame, Sample

Size = tuple[float, float]
"""Width and height."""
_RENAMED = {"rel1000": "norm1000", "rel1": "norm1"}


def frame_problem(frame: object) -> str | None:
    """Describe what is wrong with a stated frame; None where it is known."""
    known = get_args(CoordinateFrame)
    if frame in known:
        return None
    if isinstance(frame, str) and frame in _RENAMED:
        return f"meta.frame '{frame}' is called '{_RENAMED[frame]}'; write that"
    return f"meta.frame is {str(frame)[:40]!r}; known: {', '.join(known)}"


def frame_of(sample: Sample) -> CoordinateFrame:
    """Name the frame of the row's points and boxes. Rows with `gt.action` are in `norm1000` unless they say otherwise.

    Raises:
        ValueError: the row states none, or one that is not known.
    """
    frame: CoordinateFrame | None = sample.meta.get("frame")
    if frame is None and sample.gt.get("action") is not None:
        return "norm1000"
    problem = "the row states no meta.frame" if frame is None else frame_problem(frame)
    if frame is None or problem is not None:
        raise ValueError(f"row '{sample.id}' ({sample.source}): {problem} (a frame is never guessed)")
    return frame


def size_of(sample: Sample) -> Size | None:
    """Read `meta.size`, [width, height] of the picture in pixels; None where the row does not give it.

    Returns:
        (width, height) in pixels.

    Raises:
        ValueError: it is something else.
    """
    size: Any = sample.meta.get("size")
    if size is None:
        return None
    # `type(v) in`: a bool is an int to `isinstance`
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(type(v) in (int, float) and v > 0 for v in size):
        raise ValueError(f"row '{sample.id}' ({sample.source}): 'meta.size' must be [width, height] in pixels, got {size!r}")
    return float(size[0]), float(size[1])


def pixels_of(sample: Sample) -> Size:
    """Read `meta.size`, which must be there.

    Returns:
        (width, height) in pixels.

    Raises:
        ValueError: it is not.
    """
    size = size_of(sample)
    if size is None:
        raise ValueError(f"row '{sample.id}' ({sample.source}): pixels need 'meta.size' as [width, height]; add it to the row")
    return size


def sides_of(sample: Sample) -> Size:
    """Give width and height of the row's picture in the units of its coordinates.

    Returns:
        (width, height): the size in pixels, or the frame's own range (1000, or 1).

    Raises:
        ValueError: the row states no frame, or is in pixels and gives no size.
    """
    frame = frame_of(sample)
    return pixels_of(sample) if frame == "pixel" else sides(frame, (1.0, 1.0))
