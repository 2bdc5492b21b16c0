"""Which frames of a video are shown: the times that are asked for, the frame that is on screen at each, and how much is decoded at most."""

from __future__ import annotations

import importlib.util
import math
from typing import Literal, NamedTuple

import numpy as np

from vlmrl.errors import ConfigError, MediaError

Decoder = Literal["auto", "decord", "pyav", "torchcodec"]
Backend = Literal["decord", "pyav", "torchcodec"]

TICK = 1e-3
"""Seconds. Matroska rounds time stamps to this; a frame that starts less than this after t counts as on screen at t."""
MAX_FRAME_PIXELS = 40_000_000
MAX_SECONDS = 3600.0
MAX_DECODED_PIXELS = 250_000_000_000
"""Pixels of all frames together: an hour of 1920x1080 at 30 frames per second fits."""


class VideoInfo(NamedTuple):
    """What headers say. Sides are those of the upright picture."""

    width: int
    height: int
    duration: float
    """Seconds."""
    n_frames: int


def request_times(info: VideoInfo, *, fps: float, min_frames: int, max_frames: int, frame_factor: int = 2) -> tuple[np.ndarray, float]:
    """Choose the times at which frames of a video are asked for. Their number is a multiple of `frame_factor`.

    0, 1/fps, 2/fps, ... up to the duration; one more where the factor needs it (it shows the last frame). Where these are fewer
    than `min_frames` or more than `max_frames`, that many are spread evenly over the duration. A video of one frame is that
    frame `frame_factor` times.

    Returns:
        (times asked for, float64 [T] in seconds; spacing between them in seconds).

    Raises:
        ValueError: no multiple of `frame_factor` lies within [min_frames, max_frames].
    """
    low = math.ceil(min_frames / frame_factor) * frame_factor
    high = max_frames // frame_factor * frame_factor
    if high < low or fps <= 0:
        raise ValueError(f"no multiple of {frame_factor} frames in [{min_frames}, {max_frames}], or fps {fps} is not positive")
    if info.n_frames == 1:
        return np.arange(frame_factor) / fps, 1 / fps
    # a request at the very end would show nothing new; a duration that rounding made a tick longer must not add one
    natural = max(1, math.ceil((info.duration - TICK) * fps))
    if low <= natural <= high or info.duration <= 0:
        count = max(low, math.ceil(natural / frame_factor) * frame_factor)
        return np.arange(count) / fps, 1 / fps
    count = low if natural < low else high
    return np.arange(count) * (info.duration / count), info.duration / count


def frames_on_screen(times: np.ndarray, requests: np.ndarray) -> np.ndarray:
    """Find the frame on screen at each request. `times`: when each frame comes on screen, ascending, in seconds.

    Returns:
        Numbers of frames, int [T]: the last that came on screen by the request.
    """
    return np.searchsorted(times, requests + TICK, side="right") - 1


def resolve_decoder(decoder: Decoder) -> Backend:
    """Name the decoder that is tried first: PyAV, unless another one is asked for.

    PyAV is faster (1.6 times the clips per second of decord, docs/benchmarks/loader.md), because frames of others need a checking pass of
    PyAV.

    Raises:
        ConfigError: the one that is asked for is not installed.
    """
    if decoder in ("auto", "pyav"):
        return "pyav"
    if importlib.util.find_spec(decoder) is None:
        raise ConfigError(f"media.decoder: '{decoder}' is not installed; use 'auto' (PyAV), or `pip install 'vlmrl[{decoder}]'`")
    return decoder


def check_bounds(width: int, height: int, duration: float | None, n_frames: int) -> None:
    """Check declared sizes before they are decoded. Raises MediaError (`corrupt`, `too_large`)."""
    if width < 1 or height < 1:
        raise MediaError("corrupt", f"video: declares {width}x{height} pixels")
    if width * height > MAX_FRAME_PIXELS:
        raise MediaError("too_large", f"video: frames of {width}x{height} pixels, the limit is {MAX_FRAME_PIXELS}")
    if duration is not None and duration > MAX_SECONDS:
        raise MediaError("too_large", f"video: {duration:.0f} s long, the limit is {MAX_SECONDS:.0f} s")
    if width * height * n_frames > MAX_DECODED_PIXELS:
        raise MediaError("too_large", f"video: {n_frames} frames of {width}x{height} pixels are too many; cut or shrink it ahead of time")
