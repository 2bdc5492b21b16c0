"""What a picture of the toy worlds shows, measured from its pixels alone: independent of the code that drew it."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

PALETTE = {
    "red": (225, 40, 40),
    "green": (40, 190, 70),
    "blue": (60, 90, 235),
    "yellow": (235, 215, 50),
    "grey": (130, 130, 130),
    "white": (235, 235, 235),
}
NOISE = 6


def seen(pixels: np.ndarray, color: str) -> np.ndarray:
    """Mask of the pixels of one colour."""
    return (np.abs(pixels.astype(int) - np.array(PALETTE[color])) <= NOISE).all(-1)


def colors(pixels: np.ndarray) -> set[str]:
    return {color for color in PALETTE if seen(pixels, color).sum() > 20}


def parts(pixels: np.ndarray, color: str) -> list[tuple[tuple[int, int, int, int], float]]:
    """Connected areas of one colour: box in pixels (end exclusive) and the share of the box that is filled."""
    labels, _ = ndimage.label(seen(pixels, color))
    out = []
    for i, place in enumerate(ndimage.find_objects(labels), start=1):
        filled = float((labels[place] == i).mean())
        out.append(((place[1].start, place[0].start, place[1].stop, place[0].stop), filled))
    return out


def shape_of(filled: float) -> str:
    """A rectangle fills its box, an ellipse pi / 4 of it, a triangle half, an outline less."""
    return min((abs(filled - share), name) for name, share in (("square", 1.0), ("circle", np.pi / 4), ("triangle", 0.53)))[1]


def only(pixels: np.ndarray, color: str) -> tuple[list[int], str]:
    """(box in 0 to 1000, shape) of the only thing of a colour; all of its pixels."""
    rows, columns = np.nonzero(seen(pixels, color))
    box = [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]
    filled = len(rows) / ((box[2] - box[0]) * (box[3] - box[1]))
    return [10 * value for value in box], shape_of(filled)
