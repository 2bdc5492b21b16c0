"""Decodes one medium to the frames that the model sees: the same function in this process and in a worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vlmrl.media.headers import Sizing
from vlmrl.media.image import decode_image
from vlmrl.media.resize import resize
from vlmrl.media.video import probe_video, read_video
from vlmrl.types import MediaKind


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


def decode_medium(data: bytes, kind: MediaKind, sizing: Sizing) -> DecodedMedium:
    """Decode, choose frames and resize. Deterministic.

    Raises:
        MediaError: damaged, too large, of the wrong format or shape.
    """
    if kind == "image":
        pixels = decode_image(data)
        size = (pixels.shape[0], pixels.shape[1])
        return DecodedMedium(frames=resize(pixels[None], *sizing.target(*size, frames=1)), size=size)
    info = probe_video(data)
    height, width = sizing.target(info.height, info.width, frames=len(sizing.requests(info)[0]))
    video = read_video(
        data,
        fps=sizing.fps,
        min_frames=sizing.min_frames,
        max_frames=sizing.max_frames,
        decoder=sizing.decoder,
        frame_factor=sizing.temporal_patch_size,
        transform=lambda frames: resize(frames, height, width),
    )
    return DecodedMedium(frames=video.frames, size=video.size, times=video.times, duration=video.duration, spacing=video.spacing)
