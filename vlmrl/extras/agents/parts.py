"""Parts of media at the size of the file: a box of a picture, frames of a span of a video. What looks closer than a prompt did starts here.

Pixels are those that `media.decode` resizes to what a model sees: a crop that is written as a file without loss and goes through the store
is shown exactly as the same box of the picture would be.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlmrl.errors import MediaError
from vlmrl.media import container
from vlmrl.media.frames import pictures_of, same_sizes
from vlmrl.media.image import decode_image
from vlmrl.media.sampling import frames_on_screen
from vlmrl.media.video import read_frames

SIDE = 1000
"""Coordinates count thousandths of the sides of the whole picture."""


def pixel_box(box: Sequence[float], height: int, width: int) -> tuple[int, int, int, int]:
    """(x1, y1, x2, y2) in pixels, x2 and y2 outside, of a box in 0 to 1000: every pixel that the box touches, at least one.

    Raises:
        ValueError: it is not within 0 and 1000, or has no area.
    """
    x1, y1, x2, y2 = (float(value) for value in box)
    if not all(0 <= value <= SIDE for value in (x1, y1, x2, y2)):
        raise ValueError(f"the box {list(box)} is not within 0 and {SIDE}")
    if x1 >= x2 or y1 >= y2:
        raise ValueError(f"the box {list(box)} has no area")
    left, top = (min(math.floor(value * side / SIDE), side - 1) for value, side in ((x1, width), (y1, height)))
    right, bottom = (math.ceil(value * side / SIDE) for value, side in ((x2, width), (y2, height)))
    return left, top, max(right, left + 1), max(bottom, top + 1)


def crop(pixels: np.ndarray, box: Sequence[float]) -> np.ndarray:
    """The pixels of a box in 0 to 1000 of a picture, uint8 [H, W, 3] to uint8 [h, w, 3]; nothing is resized.

    Raises:
        ValueError: as `pixel_box`.
    """
    x1, y1, x2, y2 = pixel_box(box, *pixels.shape[:2])
    return np.ascontiguousarray(pixels[y1:y2, x1:x2])


@dataclass(frozen=True, kw_only=True)
class DistinctFrames:
    """Frames of a video, each once."""

    frames: np.ndarray
    """uint8 [T, H, W, 3], upright."""
    times: np.ndarray
    """float64 [T], ascending: when each comes on screen, in seconds from the first frame of the file."""


def video_seconds(data: bytes, *, bundled: bool = False) -> float:
    """How long a video lasts, in seconds. `bundled`: the bytes are of `media.frames.read_bundle`.

    Raises:
        MediaError: as decoding it, as far as its headers show it.
    """
    return pictures_of(data).end if bundled else container.read_header(io.BytesIO(data)).info.duration


def frames_at(data: bytes, seconds: Sequence[float], *, bundled: bool = False) -> DistinctFrames:
    """The frames on screen at these times (ascending, in seconds); a frame that is there at several is given once.

    The rule is that of the videos of prompts (`media.video`): a frame is on screen from its own time stamp until the next one. Decodes as
    far as the last of them.

    Raises:
        MediaError: damaged, too large, of the wrong format.
        ValueError: no times, or not ascending from 0.
    """
    requests = np.array(seconds, dtype=np.float64)
    if not len(requests) or requests[0] < 0 or bool((np.diff(requests) < 0).any()):
        raise ValueError(f"times of frames ascend from 0: {list(seconds)}")
    if bundled:
        return _of_bundle(data, requests)
    frames, times = read_frames(data, requests)
    first = np.concatenate([[True], np.diff(times) > 0])
    return DistinctFrames(frames=frames[first], times=times[first])


def _of_bundle(data: bytes, requests: np.ndarray) -> DistinctFrames:
    pictures = pictures_of(data)
    places = list(dict.fromkeys(frames_on_screen(pictures.times, requests).tolist()))
    frames: list[np.ndarray] = []
    for place in places:
        try:
            frames.append(decode_image(bytes(pictures.files[place])))
        except MediaError as error:
            raise MediaError(error.reason, f"{pictures.names[place]}: {str(error).removeprefix(error.reason + ': ')}") from error
    same_sizes([(pictures.names[place], frame.shape[:2]) for place, frame in zip(places, frames, strict=True)])
    return DistinctFrames(frames=np.stack(frames), times=pictures.times[places])
