"""agents.parts: boxes in thousandths as pixels, and the frames on screen at given times of a real file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.media import make_video
from vlmrl.extras.agents.parts import crop, frames_at, pixel_box, video_seconds
from vlmrl.media.frames import read_bundle
from vlmrl.types import MediaRef


def test_a_box_holds_every_pixel_that_it_touches():
    assert pixel_box([0, 0, 1000, 1000], 30, 40) == (0, 0, 40, 30)
    assert pixel_box([250, 500, 500, 1000], 30, 40) == (10, 15, 20, 30)
    assert pixel_box([1, 1, 2, 2], 30, 40) == (0, 0, 1, 1)
    assert pixel_box([26, 0, 51, 34], 30, 40) == (1, 0, 3, 2)
    assert pixel_box([999.9, 999.9, 1000, 1000], 30, 40) == (39, 29, 40, 30)


@given(st.lists(st.floats(0, 1000), min_size=4, max_size=4), st.integers(1, 5000), st.integers(1, 5000))
def test_a_box_with_an_area_has_pixels_inside_the_picture(values: list[float], height: int, width: int):
    (x1, x2), (y1, y2) = sorted(values[:2]), sorted(values[2:])
    if x1 == x2 or y1 == y2:
        with pytest.raises(ValueError, match="no area"):
            pixel_box([x1, y1, x2, y2], height, width)
        return
    left, top, right, bottom = pixel_box([x1, y1, x2, y2], height, width)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_a_crop_is_the_pixels_themselves():
    pixels = np.arange(30 * 40 * 3, dtype=np.uint8).reshape(30, 40, 3)
    assert (crop(pixels, [250, 500, 500, 1000]) == pixels[15:30, 10:20]).all()
    with pytest.raises(ValueError, match="not within 0 and 1000"):
        crop(pixels, [0, 0, 1001, 5])


def frames(count: int) -> np.ndarray:
    """Each frame one grey, 20 apart."""
    return np.stack([np.full((32, 48, 3), 20 + 20 * n, dtype=np.uint8) for n in range(count)])


def test_frames_of_a_real_video_at_given_times(tmp_path):
    path = tmp_path / "v.mp4"
    make_video(path, frames(10), fps=5)
    data = path.read_bytes()
    assert video_seconds(data) == pytest.approx(2.0, abs=1e-3)
    shown = frames_at(data, [0.39, 0.41, 0.5, 1.0])
    assert shown.times.tolist() == pytest.approx([0.2, 0.4, 1.0], abs=1e-3)  # 0.41 and 0.5 show one frame, which is given once
    assert [int(frame.mean()) for frame in shown.frames] == pytest.approx([40, 60, 120], abs=3)
    with pytest.raises(ValueError, match="ascend"):
        frames_at(data, [1.0, 0.5])


def test_frames_of_a_video_given_as_pictures(tmp_path):
    from PIL import Image

    for n, frame in enumerate(frames(4)):
        Image.fromarray(frame).save(tmp_path / f"{n}.png")
    ref = MediaRef(kind="video", path="0.png", frames=tuple(MediaRef(kind="image", path=f"{n}.png") for n in range(4)), fps=2.0)
    data = read_bundle(ref, tmp_path).data
    assert video_seconds(data, bundled=True) == 2.0
    shown = frames_at(data, [0.6, 0.9, 2.0], bundled=True)
    assert shown.times.tolist() == [0.5, 1.5]
    assert [int(frame[0, 0, 0]) for frame in shown.frames] == [40, 80]
