"""Cuts a region out of pictures: what few stores ask for (`Sizing.region`)."""

from __future__ import annotations

import math

import numpy as np

Region = tuple[float, float, float, float]
"""x1, y1, x2, y2 as shares of a picture's width and height."""


def bounds(region: Region, height: int, width: int) -> tuple[int, int, int, int]:
    """Find the pixels of a region: every one that it touches by more than a millionth, and at least one.

    Returns:
        (top, bottom, left, right), bottom and right outside.
    """
    x1, y1, x2, y2 = region
    top, left = (min(math.floor(share * side + 1e-6), side - 1) for share, side in ((y1, height), (x1, width)))
    bottom, right = (math.ceil(share * side - 1e-6) for share, side in ((y2, height), (x2, width)))
    return top, max(bottom, top + 1), left, max(right, left + 1)


def size(region: Region, height: int, width: int) -> tuple[int, int]:
    """Compute (H, W) of a region in pixels."""
    top, bottom, left, right = bounds(region, height, width)
    return bottom - top, right - left


def cut(pixels: np.ndarray, region: Region) -> np.ndarray:
    """Cut a region out of pictures, uint8 [T, H, W, 3]; what is left does not keep the rest in memory."""
    top, bottom, left, right = bounds(region, *pixels.shape[1:3])
    return np.ascontiguousarray(pixels[:, top:bottom, left:right])
