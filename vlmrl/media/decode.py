"""Decodes one medium to the frames that the model sees: the same function in this process and in a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vlmrl.errors import MediaError
from vlmrl.media.container import VideoInfo, check_bounds
from vlmrl.media.frames import pictures_of, same_sizes
from vlmrl.media.headers import Sizing
from vlmrl.media.image import decode_image
from vlmrl.media.resize import resize
from vlmrl.media.video import frames_on_screen, probe_video, read_video

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
    if kind == "image":
        pixels = decode_image(data)
        size = (pixels.shape[0], pixels.shape[1])
        return DecodedMedium(frames=resize(pixels[None], *sizing.target(*size, frames=1)), size=size)
    if kind == "frames":
        return _decode_frames(data, sizing)
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


def _decode_frames(data: bytes, sizing: Sizing) -> DecodedMedium:
    """The pictures on screen at the times asked for; each is decoded once."""
    pictures = pictures_of(data)
    count = len(pictures.files)
    requests, spacing = sizing.requests(VideoInfo(1, 1, pictures.end, count))
    places = frames_on_screen(pictures.times, requests)
    size = target = None
    shown: dict[int, np.ndarray] = {}
    for place in dict.fromkeys(places.tolist()):
        try:
            pixels = decode_image(bytes(pictures.files[place]))
        except MediaError as error:
            raise MediaError(error.reason, f"{pictures.names[place]}: {str(error).removeprefix(error.reason + ': ')}") from error
        height, width = pixels.shape[:2]
        if size is None or target is None:
            size = (height, width)
            check_bounds(width, height, pictures.end, len(requests))
            target = sizing.target(height, width, frames=len(requests))
        same_sizes([(pictures.names[0], size), (pictures.names[place], (height, width))])
        shown[place] = resize(pixels[None], *target)[0]
    assert size is not None, "the first frame is on screen at 0"
    return DecodedMedium(
        frames=np.stack([shown[place] for place in places.tolist()]),
        size=size,
        times=pictures.times[places],
        duration=pictures.end,
        spacing=spacing,
    )
