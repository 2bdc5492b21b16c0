"""Plans the size at which the model sees a medium (`smart_resize`), and resizes to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from vlmrl.errors import MediaError

MAX_RATIO = 200
"""Largest ratio of the longer to the shorter side (the rule of qwen-vl-utils)."""

_CHUNK = 16
_CHUNK_PIXELS = 16 * 1920 * 1080
"""Most pixels that are held as floats at a time (12 bytes each), unless one frame has more."""


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Plan the size in multiples of `factor`, with an area within [min_pixels, max_pixels], close to the given shape.

    The rule of qwen-vl-utils 0.0.14 (`vision_process.smart_resize`). Where that gives a side of zero (a very thin picture under
    a very small `max_pixels`), this is an error.

    Returns:
        (height, width) in pixels.

    Raises:
        MediaError: `aspect`, the sides differ too much.
        ValueError: min_pixels > max_pixels, or a side is not positive.
    """
    if min_pixels > max_pixels:
        raise ValueError(f"min_pixels ({min_pixels}) is larger than max_pixels ({max_pixels})")
    if min(height, width) < 1:
        raise ValueError(f"height ({height}) and width ({width}) must be positive")
    if max(height, width) / min(height, width) > MAX_RATIO:
        raise MediaError("aspect", f"{width}x{height} pixels: one side is more than {MAX_RATIO} times the other")
    # the nearest multiple first; only an area out of bounds scales both sides, down with floor and up with ceil, to stay within
    new_height = max(factor, round(height / factor) * factor)
    new_width = max(factor, round(width / factor) * factor)
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = math.floor(height / shrink / factor) * factor
        new_width = math.floor(width / shrink / factor) * factor
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    if min(new_height, new_width) < 1:
        raise MediaError(
            "aspect",
            f"{width}x{height} pixels do not fit into {max_pixels} in steps of {factor}; raise max_pixels (or video_total_pixels)",
        )
    return new_height, new_width


@contextmanager
def single_thread() -> Iterator[None]:
    """Use one torch thread within the block. The arrays of one medium are small: handing them to a thread pool costs more than it
    saves, and many times more where the cores are busy.

    torch keeps this number per thread, so nobody else is disturbed; but threads that start within the block begin with it. A thread
    that does nothing else sets it once and for all (`train.prefetch`), and this is then a no-op there.
    """
    import torch

    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resize(frames: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize frames, uint8 [T, H, W, C], antialiased bicubic, rounded and clamped. Deterministic.

    Each frame is resized by itself, so the result does not depend on what else is in the array.

    Returns:
        uint8 [T, height, width, C]; `frames` itself where they have that size.
    """
    import torch  # here, so that what needs only sizes starts without it

    if frames.dtype != np.uint8 or frames.ndim != 4:
        raise ValueError(f"frames must be uint8 [T, H, W, C], got {frames.dtype} {list(frames.shape)}")
    if frames.shape[1:3] == (height, width):
        return frames
    out = np.empty((len(frames), height, width, frames.shape[3]), dtype=np.uint8)
    several = max(1, min(_CHUNK, _CHUNK_PIXELS // (frames.shape[1] * frames.shape[2])))
    for start in range(0, len(frames), several):
        # in chunks: as float32 a frame takes four times its memory
        chunk = torch.from_numpy(np.array(frames[start : start + several])).permute(0, 3, 1, 2).float()
        # bicubic overshoots at edges: values outside of 0 to 255 would wrap as uint8
        new = torch.nn.functional.interpolate(chunk, size=(height, width), mode="bicubic", antialias=True, align_corners=False)
        out[start : start + several] = new.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return out
