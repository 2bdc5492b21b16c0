"""Pictures of the embedded worlds: what stands where, drawn pixel by pixel, and written as PNG.

All pictures are 100 x 100 pixels and edges lie on whole pixels, so that coordinates from 0 to 1000 are exact: ten times the pixel.
The resize rule of Qwen-VL makes them 112 x 112 (sixteen visual tokens), with `max_pixels` of 7056 84 x 84 (nine), and with 3136, as
most recipes have it, 56 x 56: four visual tokens, one per quarter.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmrl.rng import generator

SIDE = 100
"""Width and height of every picture in pixels."""
NOISE = 6
"""Greatest pixel noise, in levels of 0 to 255."""
DARK = (15, 60)
"""Least and (exclusive) greatest level of the background."""
COLORS: dict[str, tuple[int, int, int]] = {
    "red": (225, 40, 40),
    "green": (40, 190, 70),
    "blue": (60, 90, 235),
    "yellow": (235, 215, 50),
}
"""What is asked about has one of these."""
GREY = "grey"
PAINT: dict[str, tuple[int, int, int]] = {**COLORS, GREY: (130, 130, 130)}
"""Distractors are grey. Telling two coloured shapes apart by name takes a model of this size an order of magnitude more steps (the
score then stays where a coin flip between the two puts it), which is more than a demonstration has."""
INK: dict[str, tuple[int, int, int]] = {**PAINT, "white": (235, 235, 235)}
"""Every colour that is drawn."""
FRAME = "norm1000"
"""The frame of all coordinates in rows; see `metrics.boxes`."""

Box = tuple[int, int, int, int]
"""x1, y1, x2, y2 in pixels; x2 and y2 are the first column and row outside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thing:
    """A filled shape that touches all four sides of its box."""

    color: str
    shape: str
    """`square` (any rectangle), `circle` (any ellipse), `triangle` or `frame` (an outline of 2 pixels)."""
    box: Box

    @property
    def name(self) -> str:
        return f"{self.color} {self.shape}"

    def as_json(self) -> dict[str, Any]:
        """For a row's `meta`."""
        return {"color": self.color, "shape": self.shape, "box": norm1000(self.box)}


@dataclass(frozen=True, kw_only=True)
class Item:
    """One data row with the picture that it shows."""

    row: dict[str, Any]
    pixels: np.ndarray
    """uint8 RGB [SIDE, SIDE, 3]."""

    def files(self) -> Mapping[str, bytes]:
        """Path in the world -> file, of all that the row shows."""
        return {self.row["image"]: png(self.pixels)}


@dataclass(frozen=True, kw_only=True)
class Several(Item):
    """One data row with several pictures, of which `pixels` is the first, or with a video."""

    named: Mapping[str, bytes]

    def files(self) -> Mapping[str, bytes]:
        return self.named


def norm1000(box: Sequence[int]) -> list[int]:
    """Pixel coordinates as 0 to 1000 along each side: exact."""
    return [int(value) * 1000 // SIDE for value in box]


def paint(things: Sequence[Thing], seed: int, *coordinates: int | str) -> np.ndarray:
    """The things, in order, on a noisy dark ground; uint8 RGB [SIDE, SIDE, 3]. The coordinates decide noise and ground.

    Raises:
        ValueError: an unknown shape.
    """
    rng = generator(seed, "toy-image-pixels", *coordinates)
    image = rng.integers(-NOISE, NOISE + 1, size=(SIDE, SIDE, 3), dtype=np.int16)
    ground = _ground(things, int(rng.integers(*DARK)))
    return np.clip(image + ground, 0, 255).astype(np.uint8)


def flat(things: Sequence[Thing], level: int = 37) -> np.ndarray:
    """The things, in order, on an even dark ground, without noise; uint8 RGB [SIDE, SIDE, 3].

    Raises:
        ValueError: an unknown shape.
    """
    return _ground(things, level).astype(np.uint8)


def _ground(things: Sequence[Thing], level: int) -> np.ndarray:
    ground = np.full((SIDE, SIDE, 3), level, dtype=np.int16)
    for thing in things:
        x1, y1, x2, y2 = thing.box
        ground[y1:y2, x1:x2][mask(thing.shape, x2 - x1, y2 - y1)] = INK[thing.color]
    return ground


def mask(shape: str, width: int, height: int) -> np.ndarray:
    """Which pixels of a box of this size belong to the shape; bool [height, width]. Every side of the box has at least one.

    Raises:
        ValueError: an unknown shape.
    """
    # Half pixels, as integers: no rounding that could differ between machines.
    x = 2 * np.arange(width)[None, :] + 1 - width
    y = 2 * np.arange(height)[:, None] + 1 - height
    if shape == "square":
        return np.ones((height, width), dtype=bool)
    if shape == "circle":
        return (x * x * (height * height) + y * y * (width * width)) <= (width * height) ** 2
    if shape == "triangle":
        return 2 * np.abs(x) * height <= (y + height) * width + 2 * height
    if shape == "frame":
        inside = (np.abs(x) < width - 4) & (np.abs(y) < height - 4)
        return ~inside
    raise ValueError(f"shape '{shape}' cannot be drawn; known: square, circle, triangle, frame")


def png(pixels: np.ndarray) -> bytes:
    """The file of a picture, without metadata."""
    from PIL import Image  # heavy, and used here only

    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGB").save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()


def size_of(data: bytes) -> tuple[int, int]:
    """Width and height of the picture in a file."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return image.size


def same_pixels(a: bytes, b: bytes) -> bool:
    """Whether two files show the same picture."""
    from PIL import Image

    if a == b:
        return True
    one, other = (np.asarray(Image.open(io.BytesIO(data)).convert("RGBA")) for data in (a, b))
    return one.shape == other.shape and bool((one == other).all())
