"""decord, torchcodec and PyAV show the same frames, and where they would not, PyAV's are taken. Times and pixels are compared."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from tests.support.media import VideoFrames, frame_number, make_video, numbered_frames, read_video
from vlmrl.errors import ConfigError
from vlmrl.media.sampling import Decoder
from vlmrl.media.video import LEVELS

HAS_DECORD = importlib.util.find_spec("decord") is not None
needs_decord = pytest.mark.skipif(not HAS_DECORD, reason="decord is not installed")
MODULES = {"decord": "decord", "torchcodec": "torchcodec.decoders"}


def _loads(name: str) -> bool:
    try:
        importlib.import_module(MODULES[name])
    except (ImportError, RuntimeError):  # torchcodec says with the latter that FFmpeg's libraries, or those of its torch, are missing
        return False
    return True


others = pytest.mark.parametrize(
    "other", [pytest.param(name, marks=pytest.mark.skipif(not _loads(name), reason=f"{name} does not load here")) for name in MODULES]
)


def read(path: Path, decoder: Decoder, *, fps: float = 2.0, high: int = 64) -> VideoFrames:
    return read_video(path, fps=fps, min_frames=2, max_frames=high, decoder=decoder)


def numbers(result: VideoFrames) -> list[int]:
    return [frame_number(frame) for frame in result.frames]


VARIABLE = [0.0, 0.1, 0.2, 0.3, 3.0, 3.1, 9.0, 9.1]
SHAPES: dict[str, dict[str, Any]] = {
    "film": {"fps": 24000 / 1001},
    "one": {"fps": 1},
    "fast": {"fps": 240},
    "ntsc": {"fps": 30000 / 1001},
    "variable": {"times": VARIABLE, "last": 0.9},
    "late": {"times": [0.7 + i / 10 for i in range(40)]},
    "hidden": {"times": [-0.3 + i / 10 for i in range(40)]},
}


@others
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
@pytest.mark.parametrize("bframes", [0, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_decoders_agree_on_every_shape_of_time(tmp_path: Path, suffix: str, bframes: int, shape: str, other: Decoder) -> None:
    how = SHAPES[shape]
    count = len(how.get("times", ())) or {"fast": 200, "one": 10}.get(shape, 40)
    path = make_video(tmp_path / f"a{suffix}", numbered_frames(count), bframes=bframes, **how)
    for fps in (1.0, 7.0):
        first, second = read(path, "pyav", fps=fps), read(path, other, fps=fps)
        _same(first, second)
        assert numbers(first) == numbers(second)
    if suffix == ".mp4" and shape != "hidden":
        assert second.backend == other, "the comparison must be one of two decoders"


@others
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("bframes", [0, 2])
def test_decoders_agree_on_turned_videos(tmp_path: Path, degrees: int, bframes: int, other: Decoder) -> None:
    stored = np.ascontiguousarray(np.rot90(numbered_frames(30), degrees // 90, axes=(1, 2)))
    path = make_video(
        tmp_path / "a.mp4", stored, times=(np.cumsum([0.04, 0.3, 0.04] * 10) - 0.04).tolist(), bframes=bframes, rotation=degrees
    )
    first, second = read(path, "pyav", fps=5), read(path, other, fps=5)
    _same(first, second)
    assert second.backend == other
    assert numbers(first) == numbers(second)
    assert first.frames.shape[1:] == (48, 64, 3)


def _same(first: VideoFrames, second: VideoFrames) -> None:
    assert first.backend == "pyav"
    assert (first.duration, first.spacing, first.size) == (second.duration, second.spacing, second.size)
    assert first.times.tolist() == pytest.approx(second.times.tolist(), abs=1e-9)
    assert np.abs(first.frames.astype(int) - second.frames).max() <= LEVELS


def test_the_decoders_that_there_are() -> None:
    assert set(get_args(Decoder)) == {"auto", "decord", "pyav", "torchcodec"}


@others
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_decoders_agree_on_hard_requests(tmp_path: Path, suffix: str, other: Decoder) -> None:
    """Long gaps, chunk borders, repeated frames and reordered ones."""
    rng = np.random.default_rng(5)
    noise = rng.integers(40, 200, (160, 6, 8, 3), dtype=np.uint8).repeat(8, 1).repeat(8, 2)
    stamps = np.cumsum(rng.choice([0.01, 0.04, 0.3], size=160)).tolist()
    path = make_video(tmp_path / f"a{suffix}", noise, times=stamps, bframes=2, keyframes=20)
    for fps in (0.5, 3.0, 12.5):
        first, second = (read(path, decoder, fps=fps, high=200) for decoder in ("pyav", other))
        assert second.backend == other
        assert first.times.tolist() == second.times.tolist()
        assert np.abs(first.frames.astype(int) - second.frames).max() <= 3


@others
@pytest.mark.parametrize("color_range", [1, 2])
def test_decoders_agree_on_colour_ranges(tmp_path: Path, color_range: int, other: Decoder) -> None:
    path = make_video(tmp_path / "a.mp4", numbered_frames(10), fps=10, color_range=color_range)
    first, second = read(path, "pyav"), read(path, other)
    assert second.backend == other
    assert np.abs(first.frames.astype(int) - second.frames).max() <= 3


@needs_decord
def test_pyav_is_beneath_decord(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import decord

    path = make_video(tmp_path / "a.mp4", numbered_frames(20), fps=10)
    expected = read(path, "pyav")
    assert read(path, "auto").backend == "pyav"
    assert read(path, "decord").backend == "decord"

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(decord.VideoReader, "get_batch", fail)
    result = read(path, "decord")
    assert result.backend == "pyav"
    np.testing.assert_array_equal(result.frames, expected.frames)


@needs_decord
def test_decord_is_not_believed_about_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import decord

    path = make_video(tmp_path / "a.mp4", numbered_frames(20), fps=10)
    honest = decord.VideoReader.get_batch
    monkeypatch.setattr(decord.VideoReader, "get_batch", lambda self, places: honest(self, [i + 1 for i in places]))
    result = read(path, "decord")
    assert result.backend == "pyav"
    assert numbers(result) == [0, 5, 10, 15]


@needs_decord
def test_decord_is_not_believed_about_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import decord

    path = make_video(tmp_path / "a.mp4", numbered_frames(20), fps=10)
    monkeypatch.setattr(decord.VideoReader, "get_frame_timestamp", lambda self, i: np.array([[j / 12, (j + 1) / 12] for j in i]))
    result = read(path, "decord")
    assert result.backend == "pyav"
    assert numbers(result) == [0, 5, 10, 15]


def test_decord_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_video(tmp_path / "a.mp4", numbered_frames(20), fps=10)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert read(path, "auto").backend == "pyav"
    with pytest.raises(ConfigError, match=r"use 'auto' \(PyAV\), or `pip install 'vlmrl\[decord\]'`"):
        read(path, "decord")
