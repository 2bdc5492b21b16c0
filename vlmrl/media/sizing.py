"""The rules by which frames of media are chosen and sized, the same where a medium is decoded and where it is planned from its header."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vlmrl.media.resize import resize, smart_resize
from vlmrl.media.sampling import Decoder, VideoInfo, request_times
from vlmrl.registry import load

Grid = tuple[int, int, int]
"""Patches of a medium in time, height, width."""


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """The rules by which frames are chosen and sized; everything of a store's settings that changes pixels."""

    min_pixels: int
    max_pixels: int
    video_total_pixels: int | None
    fps: float
    min_frames: int
    max_frames: int
    decoder: Decoder
    patch_size: int
    merge_size: int
    temporal_patch_size: int
    region: tuple[float, float, float, float] | None = None
    """The part of each picture that is shown: x1, y1, x2, y2 as shares of its sides; None: all of it."""

    def requests(self, info: VideoInfo) -> tuple[np.ndarray, float]:
        """Choose the times at which frames are asked for.

        Returns:
            (times, float64 [T] in seconds; seconds between two of them).
        """
        return request_times(
            info, fps=self.fps, min_frames=self.min_frames, max_frames=self.max_frames, frame_factor=self.temporal_patch_size
        )

    def target(self, height: int, width: int, *, frames: int) -> tuple[int, int]:
        """Compute the size after resizing, of the region where there is one. A video's frames share `video_total_pixels` evenly; that
        lowers their cap, but not below `min_pixels`. All frames count: qwen-vl-utils divides its `total_pixels` by half of them, those of
        a temporal patch together, so the same frames need twice its number here.

        Returns:
            (height, width) in pixels, multiples of patch_size * merge_size.

        Raises:
            MediaError: `aspect`.
        """
        most = self.max_pixels
        if frames > 1 and self.video_total_pixels is not None:
            most = max(self.min_pixels, min(most, self.video_total_pixels // frames))
        if self.region is not None:
            height, width = load("vlmrl.media.region:size")(self.region, height, width)
        return smart_resize(height, width, factor=self.patch_size * self.merge_size, min_pixels=self.min_pixels, max_pixels=most)

    def shown(self, pixels: np.ndarray, *, frames: int) -> np.ndarray:
        """Resize some of the frames of a medium, uint8 [T, H, W, 3], or their region. Raises as `target`."""
        size = self.target(*pixels.shape[1:3], frames=frames)
        return resize(pixels if self.region is None else load("vlmrl.media.region:cut")(pixels, self.region), *size)
