"""Decodes one medium to the frames that the model sees: the same function in this process and in a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vlmrl.media.image import decode_image
from vlmrl.media.resize import resize
from vlmrl.media.sizing import Sizing
from vlmrl.registry import Catalogue

Stored = Literal["image", "video", "frames"]
"""What bytes hold: a picture, a video file, or a bundle of pictures that are a video (`media.frames`)."""


@dataclass(frozen=True, kw_only=True)
class DecodedMedium:
    """Frames as the model sees them, before they are cut into patches."""

    frames: np.ndarray
    """uint8 [T, h, w, 3]; T is 1 for images."""
    size: tuple[int, int]
    """(H, W) of the file's upright picture."""
    times: np.ndarray | None = None
    """Videos: float64 [T], when each frame comes on screen, in seconds from the first frame of the file."""
    duration: float | None = None
    """Videos: seconds."""
    spacing: float | None = None
    """Videos: seconds between two frames asked for."""


def decode_medium(data: bytes, kind: Stored, sizing: Sizing) -> DecodedMedium:
    """Decode, choose frames and resize. Deterministic.

    Raises:
        MediaError: damaged, too large, of the wrong format or shape.
    """
    return DECODERS[kind](data, sizing)


def _decode_picture(data: bytes, sizing: Sizing) -> DecodedMedium:
    pixels = decode_image(data)
    size = (pixels.shape[0], pixels.shape[1])
    return DecodedMedium(frames=resize(pixels[None], *sizing.target(*size, frames=1)), size=size)


DECODERS: Catalogue[Callable[[bytes, Sizing], DecodedMedium]] = Catalogue(
    "kind of medium",
    {"image": _decode_picture},
    {"video": "vlmrl.media.video:decode_video", "frames": "vlmrl.media.frames:decode_frames"},
)
