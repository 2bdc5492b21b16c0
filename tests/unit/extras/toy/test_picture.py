"""toy.picture: what is drawn is exactly what is stated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pixels import PALETTE, only, seen
from vlmrl.extras.toy.picture import INK, SIDE, Thing, mask, norm1000, paint, png
from vlmrl.media.image import decode_image


@given(st.sampled_from(["square", "circle", "triangle"]), st.integers(12, 45), st.integers(12, 45))
def test_a_shape_touches_all_sides_of_its_box(shape: str, width: int, height: int) -> None:
    drawn = mask(shape, width, height)
    assert drawn.shape == (height, width)
    assert drawn[0].any()
    assert drawn[-1].any()
    assert drawn[:, 0].any()
    assert drawn[:, -1].any()


@pytest.mark.parametrize(("shape", "share"), [("square", 1.0), ("circle", np.pi / 4), ("triangle", 0.5)])
def test_areas_are_those_of_geometry(shape: str, share: float) -> None:
    assert mask(shape, 40, 40).mean() == pytest.approx(share, abs=0.03)


def test_a_frame_is_an_outline_of_two_pixels() -> None:
    drawn = mask("frame", 40, 14)
    assert drawn.sum() == 40 * 14 - 36 * 10
    assert not drawn[2:-2, 2:-2].any()
    with pytest.raises(ValueError, match="star"):
        mask("star", 9, 9)


def test_later_things_cover_earlier_ones_and_noise_depends_on_coordinates() -> None:
    things = [Thing(color="grey", shape="square", box=(10, 20, 90, 40)), Thing(color="red", shape="square", box=(10, 20, 50, 40))]
    pixels = paint(things, 0, "test", 1)
    assert pixels.shape == (SIDE, SIDE, 3)
    assert only(pixels, "red") == ([100, 200, 500, 400], "square")
    assert only(pixels, "grey") == ([500, 200, 900, 400], "square")
    assert np.array_equal(pixels, paint(things, 0, "test", 1))
    assert not np.array_equal(pixels, paint(things, 0, "test", 2))
    assert not np.array_equal(pixels, paint(things, 1, "test", 1))


def test_no_colour_is_taken_for_another() -> None:
    assert INK == PALETTE
    things = [Thing(color=c, shape="square", box=(15 * i, 0, 15 * i + 15, 15)) for i, c in enumerate(PALETTE)]
    pixels = paint(things, 3, "test")
    assert [int(seen(pixels, color).sum()) for color in PALETTE] == [225] * len(PALETTE)


def test_files_hold_the_pixels() -> None:
    pixels = paint([Thing(color="blue", shape="circle", box=(5, 5, 30, 35))], 0, "test")
    assert np.array_equal(decode_image(png(pixels)), pixels)
    assert png(pixels) == png(pixels)


def test_coordinates() -> None:
    assert norm1000((0, 5, 50, 100)) == [0, 50, 500, 1000]
