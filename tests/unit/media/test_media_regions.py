"""A region of a picture: by hand numbers the pixels that it touches, and what is shown is a crop of the original that is then resized."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.media import make_video, numbered_frames
from tests.unit.media.test_media_workers import SIZING, same
from vlmrl.media.decode import Stored, decode_views
from vlmrl.media.frames import plan_frames, read_bundle
from vlmrl.media.headers import plan_medium
from vlmrl.media.region import Region, bounds
from vlmrl.media.resize import resize
from vlmrl.media.sizing import Sizing
from vlmrl.media.workers import WorkerPool
from vlmrl.types import MediaRef

LOWER_LEFT = (0.0, 0.5, 0.5, 1.0)


def part(region: Any, **more: Any) -> Sizing:
    return dataclasses.replace(SIZING, region=region, **more)


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def as_png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ((0.0, 0.0, 1.0, 1.0), (0, 60, 0, 90)),
        (LOWER_LEFT, (30, 60, 0, 45)),
        ((0.1, 0.25, 0.6, 0.75), (15, 45, 9, 54)),
        # 10.8 and 20.7 of 90, 6.6 and 13.2 of 60: every pixel that is touched
        ((0.12, 0.11, 0.23, 0.22), (6, 14, 10, 21)),
        # shares of whole pixels that are no exact numbers: 7 / 90 and 29 / 90, 11 / 60 and 13 / 60
        ((7 / 90, 11 / 60, 29 / 90, 13 / 60), (11, 13, 7, 29)),
        ((0.999999, 0.999999, 1.0, 1.0), (59, 60, 89, 90)),
        ((0.5, 0.5, 0.5 + 1e-9, 0.5 + 1e-9), (30, 31, 45, 46)),
    ],
)
def test_pixels_of_a_region(region: Any, expected: tuple[int, ...]) -> None:
    assert bounds(region, 60, 90) == expected


@given(
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    x=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    y=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_region_lies_in_the_picture_and_holds_its_box(height: int, width: int, x: tuple[float, float], y: tuple[float, float]) -> None:
    (x1, x2), (y1, y2) = sorted(x), sorted(y)
    top, bottom, left, right = bounds((x1, y1, x2, y2), height, width)
    assert 0 <= top < bottom <= height
    assert 0 <= left < right <= width
    for first, last, low, high, side in ((top, bottom, y1, y2, height), (left, right, x1, x2, width)):
        assert first <= low * side + 1e-6
        assert last >= high * side - 1e-6
        assert first > low * side - 1
        assert last < max(high * side, first) + 1 + 1e-6


@given(a=st.integers(0, 400), b=st.integers(1, 400), side=st.integers(1, 4000))
def test_whole_pixels_given_as_shares_are_those_pixels(a: int, b: int, side: int) -> None:
    first, last = a % side, min(side, a % side + b)
    top, bottom, left, right = bounds((first / side, first / side, last / side, last / side), side, side)
    assert (top, bottom, left, right) == (first, last, first, last)


@pytest.mark.parametrize("region", [LOWER_LEFT, (0.1, 0.2, 0.93, 0.81), (0.4, 0.4, 0.41, 0.41)])
def test_what_is_shown_is_a_crop_by_pillow_and_then_resized(region: Region) -> None:
    pixels = noise(120, 168)
    sizing = part(region)
    top, bottom, left, right = bounds(region, 120, 168)
    cropped = np.asarray(Image.fromarray(pixels).crop((left, top, right, bottom)))
    (shown,) = decode_views(as_png(pixels), "image", [sizing])
    assert shown.size == (120, 168), "of the file"
    target = dataclasses.replace(sizing, region=None).target(bottom - top, right - left, frames=1)
    np.testing.assert_array_equal(shown.frames, resize(cropped[None], *target))


def test_a_crop_of_a_size_that_needs_no_resizing_has_the_pixels_of_the_file() -> None:
    pixels = noise(168, 224)
    (shown,) = decode_views(as_png(pixels), "image", [part((0.25, 0.5, 0.75, 1.0))])
    np.testing.assert_array_equal(shown.frames[0], np.asarray(Image.fromarray(pixels).crop((56, 84, 168, 168))))
    assert shown.frames.flags.owndata or shown.frames.base is None or shown.frames.base.shape != (1, 168, 224, 3), "the whole can go"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, tuple[bytes, Stored]]:
    make_video(tmp_path / "a.mp4", numbered_frames(20, 64, 84), fps=10)
    (tmp_path / "frames").mkdir()
    for number, frame in enumerate(numbered_frames(6, 64, 84)):
        Image.fromarray(frame).save(tmp_path / "frames" / f"{number}.png")
    bundle = read_bundle(MediaRef(kind="video", path="frames", fps=4.0), tmp_path)
    return {
        "image": (as_png(noise(64, 84)), "image"),
        "video": ((tmp_path / "a.mp4").read_bytes(), "video"),
        "frames": (bundle.data, "frames"),
    }


@pytest.mark.parametrize("name", ["image", "video", "frames"])
def test_a_region_of_every_frame(files: dict[str, tuple[bytes, Stored]], name: str) -> None:
    """Frames at the size of the file, cut by hand: the same frames at the same times."""
    data, kind = files[name]
    native = dataclasses.replace(SIZING, min_pixels=1, max_pixels=10**8, patch_size=1, merge_size=1)
    whole, cropped = decode_views(data, kind, [native, dataclasses.replace(native, region=LOWER_LEFT)])
    assert whole.frames.shape[1:3] == (64, 84)
    np.testing.assert_array_equal(cropped.frames, whole.frames[:, 32:, :42])
    assert (cropped.size, cropped.duration, cropped.spacing) == (whole.size, whole.duration, whole.spacing)
    if whole.times is not None and cropped.times is not None:
        np.testing.assert_array_equal(cropped.times, whole.times)


@pytest.mark.parametrize("region", [(0.0, 0.0, 0.3, 1.0), (0.0, 0.3, 1.0, 0.5)])
def test_a_plan_has_the_size_of_the_region(files: dict[str, tuple[bytes, Stored]], tmp_path: Path, region: Region) -> None:
    sizing = part(region, max_pixels=56 * 56)
    for name in ("image", "video"):
        data, kind = files[name]
        assert kind != "frames"
        (shown,) = decode_views(data, kind, [sizing])
        steps = 1 if kind == "image" else len(shown.frames) // 2
        grid = plan_medium(io.BytesIO(data), kind, sizing).grid
        assert grid == (steps, shown.frames.shape[1] // 14, shown.frames.shape[2] // 14)
        assert grid != plan_medium(io.BytesIO(data), kind, dataclasses.replace(sizing, region=None)).grid
    (shown,) = decode_views(*files["frames"], [sizing])
    planned = plan_frames(MediaRef(kind="video", path="frames", fps=4.0), tmp_path, sizing)
    assert planned.grid[1:] == (shown.frames.shape[1] // 14, shown.frames.shape[2] // 14)


def test_a_worker_gives_a_region(files: dict[str, tuple[bytes, Stored]]) -> None:
    pool = WorkerPool(SIZING, count=1, deadline=60)
    try:
        for data, kind in files.values():
            found = pool.views(data, kind, [part(LOWER_LEFT)])
            assert all(same(one, other) for one, other in zip(found, decode_views(data, kind, [SIZING, part(LOWER_LEFT)]), strict=True))
    finally:
        pool.close()
