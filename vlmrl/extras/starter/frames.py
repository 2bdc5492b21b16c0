"""Finds in which frame and order boxes and points are: under which of them all lie in their pictures, and no other explains that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError, DataError
from vlmrl.extras.starter.look import MOST, Look, Reading
from vlmrl.types import CoordinateFrame, Sample

UNLIKELY, LIKELY = 1e-4, 1e-2
"""Chance that places of another frame would all lie in the pictures by accident: below the first that frame is out, and the one that is
taken must have at least the second."""
FRAMES: tuple[CoordinateFrame, ...] = ("norm1", "pixel", "norm1000")
AXES: tuple[str | None, ...] = (None, "xywh", "yxyx")
_REASONS = ("frame", "bad_value")


def frame_of(look: Look, settings: Mapping[str, Any], media_dir: Path | None) -> tuple[dict[str, str], str]:
    """What the source is to say, `frame` and where needed `axis`, and the finding.

    Args:
        settings: of the source with its answer type; a `frame` or `axis` in it stands.

    Raises:
        ConfigError: several fit alike, with the options that decide it.
        DataError: none does.
    """
    given: CoordinateFrame | None = settings.get("frame")
    frames: tuple[CoordinateFrame, ...] = FRAMES if given is None else (given,)
    axes = (settings["axis"],) if settings.get("axis") else AXES
    best: tuple[float, Reading, str] | None = None
    for axis in axes:
        readings = {frame: look.read({**settings, "frame": frame, **_axis(axis)}, media_dir) for frame in frames}
        fits: list[CoordinateFrame] = [frame for frame in frames if readings[frame].good and readings[frame].share(*_REASONS) <= MOST]
        if fits:
            frame, why = _chosen(fits, look, {**settings, **_axis(axis)}, media_dir)
            order = "" if axis is None else f"; in the order {axis}, since others have no area or leave the picture"
            return {"frame": frame, **_axis(axis)}, why + order
        for frame, reading in readings.items():
            if best is None or reading.share(*_REASONS) < best[0]:
                best = (reading.share(*_REASONS), reading, f"{frame}, {axis or 'xyxy'}")
    assert best is not None
    raise DataError(
        f"{look.path}: boxes and points fit no frame (pixels, 0 to 1, 0 to 1000) in no order (xyxy, xywh, yxyx); nearest is {best[2]}:"
        f"{best[1].problems()}"
    )


def _axis(axis: str | None) -> dict[str, str]:
    return {} if axis is None else {"axis": axis}


def _chosen(
    fits: Sequence[CoordinateFrame], look: Look, settings: Mapping[str, Any], media_dir: Path | None
) -> tuple[CoordinateFrame, str]:
    """The frame among those that all places fit, and why."""
    if "norm1" in fits:
        return "norm1", "all values lie between 0 and 1: shares of the sides"
    pixels = look.read({**settings, "frame": "pixel", "to_frame": "pixel"}, media_dir) if "pixel" in fits else None
    if pixels is None:
        return "norm1000", "all values lie between 0 and 1000, and as pixels some leave their pictures: thousandths of the sides"
    places = {(sample.media[0].path, tuple(map(tuple, _places(sample)))): sample for sample in pixels.good}
    sides = [size for sample in places.values() for size in [sample.meta["size"]] * len(_places(sample))]
    ends = [place[-2:] for sample in places.values() for place in _places(sample)]
    far, size = [max(one) for one in zip(*ends, strict=True)], [max(one) for one in zip(*sides, strict=True)]
    shown = f"values up to {far[0]:,.0f} and {far[1]:,.0f} in pictures up to {size[0]:,.0f}x{size[1]:,.0f}"
    if "norm1000" not in fits:
        return "pixel", f"{shown}, and some are no thousandths: pixels"
    pixel = math.exp(sum(math.log(min(1.0, 1000 / side)) for size in sides for side in size))
    thousandth = math.exp(sum(math.log(min(1.0, side / 1000)) for size in sides for side in size))
    if thousandth < UNLIKELY and pixel >= LIKELY:
        return "pixel", f"{shown}, none outside: pixels (thousandths would leave pictures of that size)"
    if pixel < UNLIKELY and thousandth >= LIKELY:
        return "norm1000", f"{shown}, none above 1,000: thousandths of the sides (pixels would use all of the picture)"
    raise ConfigError(
        f"boxes and points lie in their pictures as pixels and as thousandths of the sides alike: {shown}; say which, behind the command: "
        "frame=pixel or frame=norm1000 (vlmrl check --rows FILE frame=pixel --html rows.html draws them)"
    )


def _places(sample: Sample) -> list[list[float]]:
    """The boxes or points of a row."""
    return sample.gt.get("boxes") or sample.gt.get("points") or []
