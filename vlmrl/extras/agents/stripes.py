"""Pictures whose answer is too fine to be seen in the whole and plain in a quarter: what `zoom` is for, and provably so.

A picture has 448 x 448 pixels, and each quarter is filled with stripes of 4 pixels that run across or down, grey in all of them but one.
The question is which way the coloured ones run. A resize to 56 x 56 takes one pixel for eight, a whole period: antialiased bicubic weights
of equal places in a period sum to the same, so that stripes of both ways become the same even colour. A quarter alone, resized to 56 x 56,
has one pixel for each stripe. Where the colour is can be seen in either.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from vlmrl.extras.agents.calls import Call
from vlmrl.extras.toy.picture import COLORS, GREY, PAINT
from vlmrl.rng import key

SIDE, QUARTER, STRIPE = 448, 224, 4
"""Of a picture, of a quarter of it and of a stripe, in pixels."""
FADE = 32
"""Pixels over which stripes fade into their mean towards the edges of a quarter, where a resize would show half a period."""
WAYS = ("across", "down")
LEVELS = (10, 20, 30)
"""Of the dark stripes."""
BOXES = ([0, 0, 500, 500], [500, 0, 1000, 500], [0, 500, 500, 1000], [500, 500, 1000, 1000])
"""Of the quarters, in thousandths: top left, top right, bottom left, bottom right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stripes:
    """What a picture shows."""

    color: str
    quarter: int
    """Where it is."""
    ways: tuple[str, ...]
    """Of each quarter."""
    level: int

    @property
    def question(self) -> str:
        return f"Do the {self.color} stripes run across or down?"

    @property
    def answer(self) -> str:
        return self.ways[self.quarter]

    @property
    def call(self) -> str:
        """The call after which the answer can be read."""
        return zoom_call(self.quarter)


def zoom_call(quarter: int) -> str:
    """A look at a quarter, as a policy writes it."""
    return Call(name="zoom", arguments={"box": BOXES[quarter]}).text()


def make_stripes(seed: int, *names: int | str) -> Stripes:
    """What the picture at these coordinates shows."""

    def draw(n: int, *more: int | str) -> int:
        return key(seed, "toy-stripes", *names, *more) % n

    return Stripes(
        color=list(COLORS)[draw(len(COLORS), "color")],
        quarter=draw(4, "quarter"),
        ways=tuple(WAYS[draw(2, "way", quarter)] for quarter in range(4)),
        level=LEVELS[draw(len(LEVELS), "level")],
    )


@functools.lru_cache(maxsize=64)
def paint_stripes(shown: Stripes) -> np.ndarray:
    """uint8 RGB [448, 448, 3], without noise."""
    image = np.empty((SIDE, SIDE, 3), dtype=np.uint8)
    place = np.arange(QUARTER)
    sign = np.where(place // STRIPE % 2 == 0, 1.0, -1.0)
    strength = np.minimum(1.0, np.minimum(place + 0.5, QUARTER - place - 0.5) / FADE)
    for quarter, way in enumerate(shown.ways):
        x, y = QUARTER * (quarter % 2), QUARTER * (quarter // 2)
        lit, dark = np.array(PAINT[shown.color if quarter == shown.quarter else GREY], dtype=np.float64), float(shown.level)
        run = (sign[:, None] if way == "across" else sign[None, :]) * strength[:, None] * strength[None, :]
        image[y : y + QUARTER, x : x + QUARTER] = np.rint((lit + dark) / 2 + run[:, :, None] * (lit - dark) / 2)
    image.flags.writeable = False
    return image
