"""Frames are chosen by presentation time; both decoders give the same ones; damage is an error."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.media import (
    VideoFrames,
    damage,
    frame_number,
    make_audio,
    make_empty,
    make_html,
    make_video,
    numbered_frames,
    read_video,
    truncate,
)
from tests.unit.media.test_media_workers import SIZING
from vlmrl.errors import MediaError
from vlmrl.media import sampling, video
from vlmrl.media.decode import decode_views
from vlmrl.media.sampling import Decoder, VideoInfo, request_times
from vlmrl.media.video import probe_video

HAS_DECORD = importlib.util.find_spec("decord") is not None
DECODERS: list[Decoder] = ["pyav", "decord"] if HAS_DECORD else ["pyav"]


def read(path: Path | bytes, decoder: Decoder = "pyav", *, fps: float = 2.0, low: int = 2, high: int = 64, factor: int = 2) -> VideoFrames:
    return read_video(path, fps=fps, min_frames=low, max_frames=high, decoder=decoder, frame_factor=factor)


def numbers(result: VideoFrames) -> list[int]:
    return [frame_number(frame) for frame in result.frames]


def reason(path: Path, decoder: Decoder = "pyav") -> str:
    with pytest.raises(MediaError) as caught:
        read(path, decoder)
    return caught.value.reason


def test_frame_numbers_can_be_read_back() -> None:
    frames = numbered_frames(256)
    assert [frame_number(f) for f in frames] == list(range(256))


# requests ---------------------------------------------------------------------------------------------------------------


def info(duration: float, n_frames: int = 1000) -> VideoInfo:
    return VideoInfo(64, 48, duration, n_frames)


def test_requests_by_hand() -> None:
    times, spacing = request_times(info(3.0), fps=2, min_frames=2, max_frames=64)
    assert times.tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    assert spacing == 0.5
    # 2.4 s at 2 per second: 0, .5, 1, 1.5, 2 and one more to be a multiple of two
    assert request_times(info(2.4), fps=2, min_frames=2, max_frames=64)[0].tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    # too many: spread over the duration
    times, spacing = request_times(info(10.0), fps=2, min_frames=2, max_frames=5)
    assert times.tolist() == [0, 2.5, 5, 7.5]
    assert spacing == 2.5
    # too few: spread over the duration
    times, spacing = request_times(info(1.0), fps=2, min_frames=4, max_frames=64)
    assert times.tolist() == [0, 0.25, 0.5, 0.75]
    assert spacing == 0.25
    # one frame
    assert request_times(info(0.04, 1), fps=2, min_frames=4, max_frames=64)[0].tolist() == [0, 0.5]
    # a header without duration
    assert request_times(info(0.0, 2), fps=2, min_frames=4, max_frames=64)[0].tolist() == [0, 0.5, 1, 1.5]


@given(st.floats(0, 3600), st.integers(2, 10**5), st.floats(0.05, 60), st.integers(1, 32), st.integers(0, 800), st.sampled_from([1, 2, 4]))
def test_requests_are_even_within_bounds_and_a_multiple(duration: float, n: int, fps: float, low: int, more: int, factor: int) -> None:
    high = low + more + factor
    times, spacing = request_times(info(duration, n), fps=fps, min_frames=low, max_frames=high, frame_factor=factor)
    assert len(times) % factor == 0
    assert low <= len(times) <= high
    assert times[0] == 0
    np.testing.assert_allclose(np.diff(times), spacing, rtol=1e-6)
    if len(times) > max(low, factor) + factor:
        assert times[-1] <= duration + factor / fps


def test_impossible_frame_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 2"):
        request_times(info(1.0), fps=2, min_frames=3, max_frames=3)
    with pytest.raises(ValueError, match="fps"):
        request_times(info(1.0), fps=0, min_frames=2, max_frames=4)


# choice by time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts", ".avi"])
@pytest.mark.parametrize("bframes", [0, 3])
def test_constant_rate(tmp_path: Path, decoder: Decoder, suffix: str, bframes: int) -> None:
    path = make_video(tmp_path / f"a{suffix}", numbered_frames(40), fps=10, bframes=bframes)
    result = read(path, decoder)
    assert numbers(result) == [0, 5, 10, 15, 20, 25, 30, 35]
    np.testing.assert_allclose(result.times, np.arange(8) / 2, atol=1e-3)
    assert result.duration == pytest.approx(4.0, abs=0.11)
    assert result.size == (48, 64)
    assert result.frames.dtype == np.uint8
    if suffix in (".mp4", ".mkv"):
        assert result.backend == decoder


VARIABLE = [0.0, 0.1, 0.2, 0.3, 3.0, 3.1, 9.0, 9.1]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_variable_rate(tmp_path: Path, decoder: Decoder, suffix: str) -> None:
    path = make_video(tmp_path / f"a{suffix}", numbered_frames(8), times=VARIABLE, last=0.9)
    result = read(path, decoder, fps=1)
    # on screen at 0, 1, ... 9 s: frame 3 stays from 0.3 to 3.0, frame 5 from 3.1 to 9.0
    assert numbers(result) == [0, 3, 3, 4, 5, 5, 5, 5, 5, 6]
    np.testing.assert_allclose(result.times, [VARIABLE[i] for i in numbers(result)], atol=2e-3)
    assert result.duration == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("bframes", [1, 2, 3])
def test_reordered_frames_with_gaps_of_seconds(tmp_path: Path, decoder: Decoder, bframes: int) -> None:
    """Decoding ends at 4.2 s of 10: that is no lie of the header, which says 10, and the last frames are shown."""
    path = make_video(tmp_path / "a.mp4", numbered_frames(8), times=VARIABLE, last=0.9, bframes=bframes)
    result = read(path, decoder, fps=1)
    assert numbers(result) == [0, 3, 3, 4, 5, 5, 5, 5, 5, 6]
    assert result.duration == pytest.approx(10.0, abs=1e-3)
    assert probe_video(path) == (64, 48, pytest.approx(10.0, abs=1e-3), 8)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_gap_does_not_hide_that_frames_are_missing(tmp_path: Path, decoder: Decoder) -> None:
    """Thirty frames, a gap of 99 s, thirty more: a cut that takes the last frames takes little of the time."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (60, 12, 16, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
    stamps = [*np.arange(30) / 25, *(100 + np.arange(30) / 25)]
    path = make_video(tmp_path / "a.mp4", noise, times=stamps, last=0.04)
    assert reason(truncate(path, 0.8), decoder) == "truncated"


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("rate", [1, 24000 / 1001, 240])
def test_odd_rates_stay_within_one_source_frame(tmp_path: Path, decoder: Decoder, rate: float) -> None:
    count = {1: 8, 240: 250}.get(rate, 60)
    result = read(make_video(tmp_path / "a.mp4", numbered_frames(count), fps=rate), decoder, fps=4)
    requests = np.arange(len(result.times)) / 4
    late = requests - result.times
    assert late.min() >= -1e-3
    assert late[requests < count / rate].max() < 1 / rate
    assert numbers(result) == [round(t * rate) for t in result.times]


@pytest.mark.parametrize("decoder", DECODERS)
def test_times_count_from_the_first_frame(tmp_path: Path, decoder: Decoder) -> None:
    path = make_video(tmp_path / "a.mkv", numbered_frames(20), times=[0.7 + i / 10 for i in range(20)])
    result = read(path, decoder)
    assert result.times.tolist() == pytest.approx([0, 0.5, 1.0, 1.5])
    assert numbers(result) == [0, 5, 10, 15]


@pytest.mark.parametrize("decoder", DECODERS)
def test_frames_hidden_by_an_edit_list_are_not_shown(tmp_path: Path, decoder: Decoder) -> None:
    path = make_video(tmp_path / "a.mp4", numbered_frames(20), times=[-0.3 + i / 10 for i in range(20)])
    result = read(path, decoder)
    assert numbers(result) == [3, 8, 13, 18]
    assert result.times.tolist() == pytest.approx([0, 0.5, 1.0, 1.5])


@pytest.mark.parametrize("decoder", DECODERS)
def test_more_than_max_frames_are_spread(tmp_path: Path, decoder: Decoder) -> None:
    result = read(make_video(tmp_path / "a.mp4", numbered_frames(40), fps=10), decoder, fps=10, high=4)
    assert numbers(result) == [0, 10, 20, 30]
    assert result.spacing == pytest.approx(1.0)


def test_the_result_is_deterministic(tmp_path: Path) -> None:
    path = make_video(tmp_path / "a.mp4", numbered_frames(30), fps=10)
    np.testing.assert_array_equal(read(path, "auto").frames, read(path, "auto").frames)


# rotation, transform ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_rotated_videos_come_upright(tmp_path: Path, decoder: Decoder, degrees: int) -> None:
    upright = numbered_frames(10)
    stored = np.ascontiguousarray(np.rot90(upright, degrees // 90, axes=(1, 2)))
    path = make_video(tmp_path / "a.mp4", stored, fps=10, rotation=degrees)
    result = read(path, decoder)
    assert result.backend == decoder
    assert result.frames.shape[1:] == (48, 64, 3)
    assert probe_video(path)[:2] == (64, 48)
    assert numbers(result) == [0, 5]
    assert np.abs(result.frames.astype(int) - upright[[0, 5]]).mean() < 8


@pytest.mark.parametrize("decoder", DECODERS)
def test_transform_sees_upright_frames_in_pieces(tmp_path: Path, decoder: Decoder) -> None:
    path = make_video(tmp_path / "a.mp4", numbered_frames(40), fps=10)
    largest: list[int] = []

    def half(frames: np.ndarray) -> np.ndarray:
        largest.append(len(frames))
        return frames[:, ::2, ::2]

    result = read_video(path, fps=10, min_frames=2, max_frames=64, decoder=decoder, transform=half)
    assert result.frames.shape == (40, 24, 32, 3)
    assert numbers(result) == list(range(40))
    assert result.size == (48, 64)
    assert max(largest) <= 16


# few frames ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.parametrize("factor", [2, 4])
def test_one_frame_is_repeated_to_the_factor(tmp_path: Path, decoder: Decoder, suffix: str, factor: int) -> None:
    result = read(make_video(tmp_path / f"a{suffix}", numbered_frames(1), fps=10), decoder, low=8, factor=factor)
    assert len(result.frames) == factor
    assert result.times.tolist() == [0] * factor


@pytest.mark.parametrize("decoder", DECODERS)
def test_two_frames_fill_min_frames(tmp_path: Path, decoder: Decoder) -> None:
    result = read(make_video(tmp_path / "a.mp4", numbered_frames(2), fps=10), decoder, low=4)
    assert numbers(result) == [0, 0, 1, 1]


def test_audio_without_video(tmp_path: Path) -> None:
    assert reason(make_audio(tmp_path / "a.mp4")) == "no_frames"


def test_longer_audio_is_not_a_truncated_video(tmp_path: Path) -> None:
    for suffix in (".mp4", ".mkv"):
        result = read(make_video(tmp_path / f"a{suffix}", numbered_frames(10), fps=10, tone=5.0))
        assert result.duration == pytest.approx(1.0, abs=0.1)
        assert numbers(result) == [0, 5]


# damage -------------------------------------------------------------------------------------------------------------------


def test_other_content_is_refused_whatever_its_name(tmp_path: Path) -> None:
    assert reason(make_html(tmp_path / "a.mp4")) == "format"
    assert reason(make_empty(tmp_path / "b.mp4")) == "corrupt"
    Image.new("RGB", (64, 64)).save(tmp_path / "c.mp4", "PNG")
    assert reason(tmp_path / "c.mp4") == "format"
    Image.new("RGB", (64, 64)).save(tmp_path / "d.mp4", "AVIF")
    assert reason(tmp_path / "d.mp4") == "format"
    with pytest.raises(MediaError, match="missing"):
        read(tmp_path / "none.mp4")


@pytest.mark.parametrize("text", ["#EXTM3U\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile '{}'\n"])
def test_playlists_cannot_open_other_files(tmp_path: Path, text: str) -> None:
    inner = make_video(tmp_path / "inner.ts", numbered_frames(10), fps=10)
    (tmp_path / "list.mp4").write_text(text.format(inner))
    assert reason(tmp_path / "list.mp4") == "format"
    assert reason(tmp_path / "list.mp4", "auto") == "format"


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.8])
def test_cut_files_are_truncated(tmp_path: Path, decoder: Decoder, suffix: str, share: float) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (60, 12, 16, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
    path = truncate(make_video(tmp_path / f"a{suffix}", noise, fps=10), share)
    if suffix != ".ts":
        assert reason(path, decoder) == "truncated"
        return
    try:  # MPEG-TS promises nothing: what is there is a shorter video, unless the last frame is seen to be cut
        result = read(path, decoder)
    except MediaError as error:
        found = error.reason
    else:
        found = "shorter" if 0 < result.duration < 6.0 * share + 0.5 else "invented"
    assert found in ("shorter", "corrupt")


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_loss_of_a_last_frame_is_tolerated(tmp_path: Path, decoder: Decoder) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (60, 12, 16, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
    path = make_video(tmp_path / "a.mp4", noise, fps=10)
    whole = read(path, decoder)
    cut = read(truncate(path, 0.97), decoder)
    assert cut.duration == whole.duration
    np.testing.assert_array_equal(cut.frames, whole.frames)


def test_an_mp4_without_its_index_is_truncated(tmp_path: Path) -> None:
    data = make_video(tmp_path / "a.mp4", numbered_frames(10), fps=10).read_bytes()
    at = data.index(b"moov") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    (tmp_path / "b.mp4").write_bytes(data[:at] + data[at + size :])
    assert reason(tmp_path / "b.mp4") == "truncated"


@pytest.mark.parametrize("decoder", DECODERS)
def test_damaged_streams_are_corrupt_and_not_concealed(tmp_path: Path, decoder: Decoder) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (60, 12, 16, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
    path = make_video(tmp_path / "a.mp4", noise, fps=10)
    whole = path.read_bytes()
    for share in (0.4, 0.5, 0.7):
        path.write_bytes(whole)
        assert reason(damage(path, share=share, count=400), decoder) == "corrupt"


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_header_that_promises_too_little(tmp_path: Path, decoder: Decoder) -> None:
    path = make_video(tmp_path / "a.mp4", numbered_frames(20), fps=10)
    data = bytearray(path.read_bytes())
    at = data.index(b"mdhd") + 4 + 16
    data[at : at + 4] = (int.from_bytes(data[at : at + 4], "big") // 3).to_bytes(4, "big")
    path.write_bytes(bytes(data))
    assert reason(path, decoder) == "corrupt"


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_video(tmp_path / "a.mp4", numbered_frames(20), fps=10)
    for name, value in (("MAX_SECONDS", 1.5), ("MAX_FRAME_PIXELS", 3000), ("MAX_DECODED_PIXELS", 60_000)):
        with monkeypatch.context() as patch:
            patch.setattr(sampling, name, value)
            assert reason(path) == "too_large"
    monkeypatch.setattr(video, "VIDEO_BYTES", 100)
    with pytest.raises(MediaError, match="too_large"):
        decode_views(path.read_bytes(), "video", [SIZING])


# probing ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts", ".avi"])
def test_probe(tmp_path: Path, suffix: str) -> None:
    path = make_video(tmp_path / f"a{suffix}", numbered_frames(40, 48, 80), fps=10)
    found = probe_video(path)
    assert found == (80, 48, pytest.approx(4.0, abs=0.11), 40)
    assert probe_video(path.read_bytes()) == found
    assert probe_video(io.BytesIO(path.read_bytes())) == found


def test_probe_decodes_one_frame_only(tmp_path: Path) -> None:
    """A file whose later frames are damaged can still be probed."""
    path = make_video(tmp_path / "a.mp4", numbered_frames(40), fps=10)
    expected = probe_video(path)
    assert probe_video(damage(path, share=0.8)) == expected
