"""Videos whose clock starts again, whose frames change their size, or that lack a piece in the middle: read right, or refused by name."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.support.media import VideoFrames, frame_number, make_video, numbered_frames, read_video
from vlmrl.errors import MediaError
from vlmrl.media.video import read_video_info

SUFFIXES = [".ts", ".mkv", ".mp4", ".avi"]


def read(path: Path, fps: float = 2.0, decoder: Any = "auto") -> VideoFrames:
    return read_video(path, fps=fps, min_frames=2, max_frames=64, decoder=decoder)


def problem(path: Path) -> str:
    with pytest.raises(MediaError) as caught:
        read(path)
    return str(caught.value)


def joined(folder: Path, suffix: str, first: np.ndarray, second: np.ndarray, *, bframes: int, start: float = 0.0) -> Path:
    """Two files end to end, as `cat` leaves them."""
    a = make_video(folder / f"a{suffix}", first, fps=10, bframes=bframes)
    b = make_video(folder / f"b{suffix}", second, times=[start + i / 10 for i in range(len(second))], bframes=bframes)
    path = folder / f"joined{suffix}"
    path.write_bytes(a.read_bytes() + b.read_bytes())
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("bframes", [0, 3])
@pytest.mark.parametrize("size", [(48, 64), (96, 128)])
def test_joined_files_are_refused(tmp_path: Path, suffix: str, bframes: int, size: tuple[int, int]) -> None:
    """All of the first part would be shown, and nothing of the second."""
    path = joined(tmp_path, suffix, numbered_frames(20), numbered_frames(20, *size), bframes=bframes)
    text = problem(path)
    assert text.startswith("corrupt: video: ")
    assert suffix == ".avi" or "Files that were joined end to end look so" in text
    if suffix in (".ts", ".mp4"):  # also by `vlmrl check`, which does not decode
        with pytest.raises(MediaError, match="joined end to end"):
            read_video_info(io.BytesIO(path.read_bytes()))


@pytest.mark.parametrize("bframes", [0, 3])
def test_a_transport_stream_whose_counters_fit_is_seen_by_its_clock(tmp_path: Path, bframes: int) -> None:
    """Without the broken count of packets that the demuxer notices at most joints."""
    frames = numbered_frames(40)
    path = tmp_path / "again.ts"
    data = make_video(path, frames[:20], fps=10, bframes=bframes).read_bytes()
    path.write_bytes(continued(data, make_video(tmp_path / "b.ts", frames[20:], fps=10, bframes=bframes).read_bytes()))
    assert "its time stamps run back" in problem(path)


def continued(first: bytes, second: bytes) -> bytes:
    """Two transport streams in one, the continuity counters of the second (ISO 13818-1, 2.4.3.3) going on from those of the first."""
    out, counters = bytearray(first + second), dict[int, int]()
    for at in range(0, len(out), 188):
        stream, has_payload = int.from_bytes(out[at + 1 : at + 3], "big") & 0x1FFF, out[at + 3] & 0x10
        counters[stream] = counters.get(stream, -1) + (1 if has_payload else 0)
        out[at + 3] = out[at + 3] & 0xF0 | counters[stream] & 15
    return bytes(out)


def test_a_transport_stream_that_goes_on_in_time_and_count_is_one_video(tmp_path: Path) -> None:
    a = make_video(tmp_path / "a.ts", numbered_frames(20), fps=10).read_bytes()
    b = make_video(tmp_path / "b.ts", numbered_frames(40)[20:], times=[2 + i / 10 for i in range(20)]).read_bytes()
    path = tmp_path / "whole.ts"
    path.write_bytes(continued(a, b))
    shown = read(path)
    assert [frame_number(frame) for frame in shown.frames] == [0, 5, 10, 15, 20, 25, 30, 35]
    assert shown.duration == pytest.approx(4.0, abs=0.11)


def test_a_piece_that_is_missing_in_the_middle_is_named(tmp_path: Path) -> None:
    """It was the end of the video before, without a word."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (40, 12, 16, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
    path = make_video(tmp_path / "a.ts", noise, fps=10)
    data = path.read_bytes()
    middle = len(data) // 2 // 188 * 188
    path.write_bytes(data[: middle - 5 * 188] + data[middle:])
    text = problem(path)
    assert "is damaged after " in text
    assert 1.5 < float(text.split("damaged after ")[1].split()[0]) < 2.5


@pytest.mark.parametrize("suffix", [".ts", ".mkv", ".mp4"])
@pytest.mark.parametrize("decoder", ["pyav", "decord"])
def test_a_change_of_size_is_refused_with_its_time(tmp_path: Path, suffix: str, decoder: str) -> None:
    """Within one file with one clock, as a recorder writes it whose source changes."""
    pytest.importorskip("decord") if decoder == "decord" else None
    path = two_sizes(tmp_path / f"a{suffix}", numbered_frames(20), numbered_frames(20, 96, 128))
    with pytest.raises(MediaError, match=r"the frame at 2\.00 s has 128x96 pixels, not 64x48: its size changes"):
        read(path, decoder=decoder)


def two_sizes(path: Path, first: np.ndarray, second: np.ndarray) -> Path:
    """Frames of two encoders one after the other in one stream; each key frame says its size again."""
    import av

    with av.open(str(path), mode="w") as container:
        stream: Any = None
        for number, frames in enumerate((first, second)):
            coder = cast(Any, av.CodecContext.create("libx264", "w"))
            coder.height, coder.width, coder.pix_fmt, coder.time_base = *frames.shape[1:3], "yuv420p", Fraction(1, 10)
            coder.options = {"x264-params": "repeat-headers=1:bframes=0", "preset": "fast", "threads": "1"}
            pieces = []
            for i, pixels in enumerate(frames):
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.pts, frame.time_base = number * len(first) + i, Fraction(1, 10)
                pieces += coder.encode(frame)
            pieces += coder.encode(None)
            if stream is None:
                stream = cast(Any, container.add_stream("libx264", rate=10))
                stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
                stream.codec_context.time_base = Fraction(1, 10)
            for packet in pieces:
                packet.stream = stream
                container.mux(packet)
    return path


@pytest.mark.parametrize("suffix", [".ts", ".mkv", ".mp4"])
@pytest.mark.parametrize("bframes", [0, 3])
def test_a_gap_is_no_damage(tmp_path: Path, suffix: str, bframes: int) -> None:
    """A frame stays on screen until the next one comes, however long that takes."""
    path = make_video(
        tmp_path / f"a{suffix}", numbered_frames(10), times=[0, 0.1, 0.2, 0.3, *(30 + i / 10 for i in range(6))], bframes=bframes
    )
    shown = read(path, fps=1)
    assert [frame_number(frame) for frame in shown.frames][:30] == [0, *[3] * 29]
    assert frame_number(shown.frames[-1]) >= 4


@pytest.mark.parametrize("bframes", [0, 3])
def test_the_clock_of_a_transport_stream_may_wrap(tmp_path: Path, bframes: int) -> None:
    """After 2**33 ticks of 90 kHz, 26.5 hours."""
    wrap = 2**33 / 90_000
    path = make_video(tmp_path / "a.ts", numbered_frames(40), times=[wrap - 2 + i / 10 for i in range(40)], bframes=bframes)
    shown = read(path)
    assert [frame_number(frame) for frame in shown.frames] == [0, 5, 10, 15, 20, 25, 30, 35]


def test_slow_reordered_frames_are_no_restart(tmp_path: Path) -> None:
    """At one frame in two seconds, reordering moves presentation times by many seconds; decoding times still only grow."""
    for suffix in (".ts", ".mkv", ".mp4"):
        path = make_video(tmp_path / f"a{suffix}", numbered_frames(12), fps=0.5, bframes=4)
        assert [frame_number(frame) for frame in read(path, fps=0.5).frames] == list(range(12))
