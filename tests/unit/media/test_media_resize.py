"""Sizes follow qwen-vl-utils; pixels follow one antialiased bicubic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vlmrl.compat import ensure_torchvision
from vlmrl.config.load import load
from vlmrl.errors import MediaError
from vlmrl.media.resize import resize, smart_resize
from vlmrl.media.sizing import Sizing

ensure_torchvision()
from qwen_vl_utils.vision_process import FRAME_FACTOR  # noqa: E402
from qwen_vl_utils.vision_process import smart_resize as reference  # noqa: E402


@settings(max_examples=300, deadline=None)
@given(
    height=st.integers(1, 4000),
    width=st.integers(1, 4000),
    factor=st.sampled_from([28, 32, 14]),
    low=st.integers(1, 200_000),
    more=st.integers(0, 2_000_000),
)
def test_equals_qwen_vl_utils(height: int, width: int, factor: int, low: int, more: int) -> None:
    try:
        expected = reference(height, width, factor, low, low + more)
    except ValueError:
        expected = None
    if expected is None or min(expected) == 0:
        with pytest.raises(MediaError, match="aspect"):
            smart_resize(height, width, factor=factor, min_pixels=low, max_pixels=low + more)
        return
    got = smart_resize(height, width, factor=factor, min_pixels=low, max_pixels=low + more)
    assert got == expected
    assert got[0] % factor == 0
    assert got[1] % factor == 0


def test_by_hand() -> None:
    # 100 / 28 = 3.57 -> 4, 60 / 28 = 2.14 -> 2
    assert smart_resize(100, 60, factor=28, min_pixels=1, max_pixels=10**6) == (112, 56)
    # 1120 x 560 in 156800 pixels: shrink by 2 -> 560 x 280
    assert smart_resize(1120, 560, factor=28, min_pixels=1, max_pixels=156_800) == (560, 280)
    # 28 x 28 to at least 3136 pixels: grow by 2 -> 56 x 56
    assert smart_resize(28, 28, factor=28, min_pixels=3136, max_pixels=10**6) == (56, 56)


def test_extreme_shapes() -> None:
    smart_resize(1, 200, factor=28, min_pixels=3136, max_pixels=501_760)
    with pytest.raises(MediaError, match="aspect"):
        smart_resize(1, 201, factor=28, min_pixels=3136, max_pixels=501_760)
    with pytest.raises(MediaError, match="raise max_pixels"):
        smart_resize(10, 1000, factor=28, min_pixels=1, max_pixels=2000)
    with pytest.raises(ValueError, match="larger than"):
        smart_resize(10, 10, factor=28, min_pixels=100, max_pixels=99)
    with pytest.raises(ValueError, match="positive"):
        smart_resize(0, 10, factor=28, min_pixels=1, max_pixels=99)


def test_same_size_is_the_same_array() -> None:
    frames = np.zeros((2, 28, 56, 3), dtype=np.uint8)
    assert resize(frames, 28, 56) is frames


def test_close_to_pillow_bicubic() -> None:
    """Pillow's bicubic is antialiased too. It rounds after each axis (one level of difference) and clamps (so no extremes here)."""
    rng = np.random.default_rng(1)
    frame = rng.integers(90, 166, (90, 130, 3), dtype=np.uint8)
    for height, width in ((28, 56), (112, 196), (45, 260)):
        expected = np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
        got = resize(frame[None], height, width)
        assert got.shape == (1, height, width, 3)
        assert got.dtype == np.uint8
        assert np.abs(got[0].astype(int) - expected).max() <= 1


def test_a_frame_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (37, 30, 20, 3), dtype=np.uint8)
    together = resize(frames, 28, 28)
    for i in (0, 15, 16, 36):
        np.testing.assert_array_equal(together[i], resize(frames[i : i + 1], 28, 28)[0])


def test_overshoot_is_clamped_and_not_wrapped() -> None:
    step = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    step[:, :, 4:] = 255
    out = resize(step, 8, 64)[0, 0, :, 0].astype(int)
    assert out[:28].max() <= 16
    assert out[36:].min() >= 239


def test_read_only_input_and_wrong_input() -> None:
    frames = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    frames.flags.writeable = False
    assert resize(frames, 4, 4).shape == (1, 4, 4, 3)
    with pytest.raises(ValueError, match="uint8"):
        resize(frames.astype(np.float32), 4, 4)


@pytest.mark.parametrize("frames", [4, 10, 60, 200, 426])
@pytest.mark.parametrize(("height", "width"), [(360, 640), (480, 270), (1080, 1920)])
def test_a_budget_of_qwen_vl_utils_is_half_of_ours(height: int, width: int, frames: int) -> None:
    """The recipe of TempSamp-R1 gives a frame the pixels that `total_pixels` of 3584 * 28 * 28 gives it there (fetch_video)."""
    media = load("tempsamp", []).config.media
    sizing = Sizing(
        **{name: getattr(media, name) for name in ("min_pixels", "max_pixels", "video_total_pixels", "fps", "min_frames", "max_frames")},
        decoder="pyav",
        patch_size=14,
        merge_size=2,
        temporal_patch_size=2,
    )
    most = max(min(768 * 28 * 28, int(3584 * 28 * 28 / frames * FRAME_FACTOR)), int(16 * 28 * 28 * 1.05))
    assert sizing.target(height, width, frames=frames) == reference(height, width, factor=28, min_pixels=16 * 28 * 28, max_pixels=most)
