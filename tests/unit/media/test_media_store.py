"""Media are processed once per content, and what `plan` promises is what `get` gives."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support.media import frame_number, make_video, numbered_frames, truncate
from vlmrl.compat import ensure_torchvision
from vlmrl.errors import MediaError
from vlmrl.media.store import MediaSettings, MediaStore
from vlmrl.types import MediaKind, MediaRef

SETTINGS = MediaSettings(
    min_pixels=28 * 28,
    max_pixels=112 * 112,
    video_total_pixels=None,
    fps=2.0,
    min_frames=2,
    max_frames=16,
    cache_bytes=2**24,
    decoder="auto",
)


def fake_patchify(frames: np.ndarray, kind: MediaKind) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Each patch as its mean colour, one row per patch and temporal step."""
    count, height, width, _ = frames.shape
    steps = 1 if kind == "image" else count // 2
    cut = frames[: count if kind == "image" else steps * 2].reshape(steps, -1, height // 14, 14, width // 14, 14, 3)
    return cut.mean(axis=(1, 3, 5)).reshape(-1, 3).astype(np.float32), (steps, height // 14, width // 14)


def store(patchify: Any = fake_patchify, fingerprint: str = "", **changes: Any) -> MediaStore:
    section = dataclasses.replace(SETTINGS, **changes)
    return MediaStore(section, patchify=patchify, patch_size=14, merge_size=2, temporal_patch_size=2, fingerprint=fingerprint)


def image(path: str = "a.png", sha256: str | None = None) -> MediaRef:
    return MediaRef(kind="image", path=path, sha256=sha256)


def clip(path: str = "a.mp4") -> MediaRef:
    return MediaRef(kind="video", path=path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png", "c.png"):
        Image.fromarray(rng.integers(0, 256, (60, 90, 3), dtype=np.uint8)).save(tmp_path / name)
    make_video(tmp_path / "a.mp4", numbered_frames(40, 56, 84), fps=10)
    return tmp_path


def test_an_image(root: Path) -> None:
    media = store().get(image(), root)
    # 60 / 28 = 2.1 -> 56, 90 / 28 = 3.2 -> 84
    assert media.frames.shape == (1, 56, 84, 3)
    assert media.handle.grid_thw == (1, 4, 6)
    assert media.handle.tokens == 6
    assert media.handle.seconds_per_grid is None
    assert (media.original_size, media.times, media.duration) == ((60, 90), None, None)
    np.testing.assert_array_equal(media.pixel_values, fake_patchify(media.frames, "image")[0])


def test_a_video(root: Path) -> None:
    media = store().get(clip(), root)
    assert [frame_number(f) for f in media.frames] == [0, 5, 10, 15, 20, 25, 30, 35]
    assert media.times is not None
    assert media.times.tolist() == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5])
    assert media.handle.grid_thw == (4, 4, 6)
    assert media.handle.tokens == 24
    assert media.handle.seconds_per_grid == pytest.approx(1.0)
    assert (media.original_size, media.duration) == ((56, 84), pytest.approx(4.0))


def test_seconds_per_grid_follows_the_real_spacing(root: Path) -> None:
    # 4 frames over 4 s are one second apart, two per grid step
    assert store(max_frames=4).get(clip(), root).handle.seconds_per_grid == pytest.approx(2.0)


def test_step_times_are_the_mean_of_the_first_and_last_frame_of_a_step(root: Path) -> None:
    make_video(root / "uneven.mkv", numbered_frames(6, 56, 84), times=[0.0, 0.1, 0.7, 0.8, 1.4, 2.3], last=0.2)
    timed = MediaStore(SETTINGS, patchify=fake_patchify, patch_size=14, merge_size=2, temporal_patch_size=2, step_times=True)
    # asked for 0, 0.5, 1, 1.5, 2 and once more for an even number: frames of 0, 0.1, 0.8, 1.4, 1.4, 2.3 seconds
    media = timed.get(clip("uneven.mkv"), root)
    assert media.times is not None
    assert media.times.tolist() == pytest.approx([0, 0.1, 0.8, 1.4, 1.4, 2.3], abs=1e-3)
    assert media.handle.step_times == pytest.approx((0.05, 1.1, 1.85), abs=1e-3)
    assert timed.get(clip(), root).handle.step_times == (0.25, 1.25, 2.25, 3.25)
    for name in ("uneven.mkv", "a.mp4"):
        assert dataclasses.replace(timed.get(clip(name), root).handle, key="") == timed.plan(clip(name), root)
    assert timed.get(image(), root).handle.step_times is timed.plan(image(), root).step_times is None
    assert store().get(clip(), root).handle.step_times is store().plan(clip(), root).step_times is None


def test_total_pixels_are_shared_by_the_frames(root: Path) -> None:
    # 56 x 84 to 2352 pixels: shrink by sqrt 2 -> 39.6 x 59.4 -> 28 x 56
    assert store(video_total_pixels=8 * 2352).get(clip(), root).frames.shape == (8, 28, 56, 3)
    # the cap stays at min_pixels: 56 x 84 to 3136 pixels -> 45.7 x 68.6 -> 28 x 56
    assert store(video_total_pixels=1, min_pixels=3136).get(clip(), root).frames.shape == (8, 28, 56, 3)
    # images have no total
    assert store(video_total_pixels=1).get(image(), root).frames.shape == (1, 56, 84, 3)


def test_content_is_decoded_once_under_any_name(root: Path) -> None:
    (root / "copy.png").write_bytes((root / "a.png").read_bytes())
    media = store()
    first = media.get(image(), root)
    assert media.get(image(), root) is first
    assert media.get(image("copy.png"), root) is first
    assert media.get_key(first.handle.key) is first
    assert media.stats["decoded"] == 1
    assert media.stats["opened"] == 2
    assert media.stats["cache_hits"] == 3
    assert media.stats["evicted"] == 0
    assert media.stats["decode_seconds"] > 0


def test_the_key_depends_on_content_and_processing(root: Path) -> None:
    keys = {store().get(image(name), root).handle.key for name in ("a.png", "b.png")}
    for change in ({"max_pixels": 56 * 56}, {"fps": 1.0}, {"fingerprint": "other"}, {"decoder": "pyav"}):
        keys.add(store(**change).get(image(), root).handle.key)
    assert len(keys) >= 5
    assert store(cache_bytes=1).get(image(), root).handle.key in keys


def test_least_recently_used_goes_first(root: Path) -> None:
    size = store().get(image(), root).nbytes
    media = store(cache_bytes=2 * size)
    a, b = media.get(image("a.png"), root), media.get(image("b.png"), root)
    media.get(image("a.png"), root)
    media.get(image("c.png"), root)
    assert media.cached_bytes == 2 * size
    assert media.stats["evicted"] == 1
    assert media.get(image("a.png"), root) is a
    again = media.get_key(b.handle.key)
    assert again is not b
    np.testing.assert_array_equal(again.frames, b.frames)
    assert media.stats["decoded"] == 4


def test_what_is_larger_than_the_budget_is_not_kept(root: Path) -> None:
    media = store(cache_bytes=10)
    first = media.get(image(), root)
    assert media.cached_bytes == 0
    assert media.get_key(first.handle.key).handle == first.handle
    assert media.stats["decoded"] == 2


def test_a_changed_file_is_noticed(root: Path) -> None:
    media = store(cache_bytes=10)
    first = media.get(image(), root)
    (root / "a.png").write_bytes((root / "b.png").read_bytes())
    with pytest.raises(MediaError, match=r"changed: a\.png"):
        media.get_key(first.handle.key)
    assert media.get(image(), root).handle.key != first.handle.key
    with pytest.raises(KeyError):
        media.get_key("unknown")


def test_expected_hashes_are_checked_also_on_a_hit(root: Path) -> None:
    import hashlib

    digest = hashlib.sha256((root / "a.png").read_bytes()).hexdigest()
    media = store()
    media.get(image(sha256=digest), root)
    media.get(image(sha256=digest.upper()), root)
    with pytest.raises(MediaError, match=r"hash_mismatch: a\.png"):
        media.get(image(sha256="0" * 64), root)


def test_entries_are_shared_and_read_only(root: Path) -> None:
    media = store().get(clip(), root)
    for array in (media.frames, media.times):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_errors_name_the_file_and_keep_their_reason(root: Path) -> None:
    truncate(root / "a.mp4", 0.5)
    for call in (store().get,):
        with pytest.raises(MediaError, match=r"a\.mp4") as caught:
            call(clip(), root)
        assert caught.value.reason == "truncated"
    Image.new("RGB", (3000, 10)).save(root / "thin.png")
    for call in (store().get, store().plan):
        with pytest.raises(MediaError, match=r"aspect: thin\.png"):
            call(image("thin.png"), root)
        with pytest.raises(MediaError, match="missing"):
            call(image("none.png"), root)
        with pytest.raises(MediaError, match="forbidden"):
            call(image("../a.png"), root)


def test_a_processor_that_resizes_is_found_out(root: Path) -> None:
    def smaller(frames: np.ndarray, kind: MediaKind) -> tuple[np.ndarray, tuple[int, int, int]]:
        return fake_patchify(frames[:, :28, :28], kind)

    with pytest.raises(ValueError, match="it resizes"):
        store(smaller).get(image(), root)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(height=st.integers(4, 300), width=st.integers(4, 300), orientation=st.integers(1, 8), kind=st.sampled_from(["PNG", "JPEG", "WEBP"]))
def test_plan_equals_get_for_images(tmp_path: Path, height: int, width: int, orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, kind, exif=exif)
    (tmp_path / "x.img").write_bytes(buffer.getvalue())
    media = store()
    planned = media.plan(image("x.img"), tmp_path)
    assert media.stats["decoded"] == 0
    assert planned == dataclasses.replace(media.get(image("x.img"), tmp_path).handle, key="")


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts", ".avi"])
@pytest.mark.parametrize(("count", "fps"), [(1, 10.0), (2, 10.0), (23, 10.0), (50, 24000 / 1001), (100, 7.0)])
def test_plan_equals_get_for_videos(tmp_path: Path, suffix: str, count: int, fps: float) -> None:
    name = f"a{suffix}"
    make_video(tmp_path / name, numbered_frames(count, 48, 64), fps=fps, rotation=90 if suffix == ".mp4" else 0)
    media = store(video_total_pixels=20_000, max_frames=10)
    planned = media.plan(clip(name), tmp_path)
    assert media.stats["decoded"] == 0
    assert planned == dataclasses.replace(media.get(clip(name), tmp_path).handle, key="")


def test_with_the_real_processors(root: Path) -> None:
    """Pixel values are the frames, scaled and normalised, and nothing else has touched them."""
    ensure_torchvision()
    import torch
    from transformers import Qwen2VLImageProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    images, videos = Qwen2VLImageProcessor(), Qwen2VLVideoProcessor()

    def patchify(frames: np.ndarray, kind: MediaKind) -> tuple[np.ndarray, tuple[int, int, int]]:
        tensor = torch.from_numpy(frames).permute(0, 3, 1, 2)
        if kind == "image":
            out = images(images=[tensor[0]], do_resize=False, return_tensors="pt")
            values, grid = out["pixel_values"], out["image_grid_thw"]
        else:
            out = videos(videos=[tensor], do_resize=False, do_sample_frames=False, return_tensors="pt")
            values, grid = out["pixel_values_videos"], out["video_grid_thw"]
        t, h, w = (int(v) for v in grid[0])
        return values.float().numpy(), (t, h, w)

    mean = np.array([0.48145466, 0.4578275, 0.40821073])
    std = np.array([0.26862954, 0.26130258, 0.27577711])
    real = store(patchify)
    for ref in (image(), clip()):
        media = real.get(ref, root)
        assert dataclasses.replace(media.handle, key="") == real.plan(ref, root)
        # patch 0 is the top left one of the first temporal step: channel, time, 14 rows, 14 columns
        patch = media.pixel_values[0].reshape(3, 2, 14, 14)
        for step in range(2):
            frame = media.frames[min(step, len(media.frames) - 1)]
            expected = (frame[:14, :14] / 255 - mean) / std
            np.testing.assert_allclose(patch[:, step].transpose(1, 2, 0), expected, atol=2e-5)
