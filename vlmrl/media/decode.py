"""Decodes one medium to the frames that the model sees: the same function in this process and in a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vlmrl.media.image import decode_image
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


def decode_views(data: bytes, kind: Stored, sizings: Sequence[Sizing]) -> list[DecodedMedium]:
    """Decode once, and choose and resize the frames of one or several views. Deterministic.

    Args:
        sizings: one for each view; all name one decoder.

    Returns:
        The views; each is the same, bit for bit, whatever others are asked for with it.

    Raises:
        MediaError: damaged, too large, of the wrong format or shape; for any of the views.
    """
    return DECODERS[kind](data, sizings)


def _decode_picture(data: bytes, sizings: Sequence[Sizing]) -> list[DecodedMedium]:
    pixels = decode_image(data)
    size = (pixels.shape[0], pixels.shape[1])
    return [DecodedMedium(frames=sizing.shown(pixels[None], frames=1), size=size) for sizing in sizings]


DECODERS: Catalogue[Callable[[bytes, Sequence[Sizing]], list[DecodedMedium]]] = Catalogue(
    "kind of medium",
    {"image": _decode_picture},
    {"video": "vlmrl.media.video:decode_video", "frames": "vlmrl.media.frames:decode_frames"},
)
