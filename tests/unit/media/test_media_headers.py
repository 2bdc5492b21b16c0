"""What headers say equals what decoding finds, for honest files of every accepted format; and nothing is decoded for it."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support.media import make_video, numbered_frames
from vlmrl.errors import MediaError
from vlmrl.media import container, headers
from vlmrl.media.decode import decode_views
from vlmrl.media.headers import plan_medium, read_image_size
from vlmrl.media.image import decode_image
from vlmrl.media.iso import read_iso
from vlmrl.media.rotation import says_nothing_of_rotation
from vlmrl.media.sizing import Sizing
from vlmrl.media.video import probe_video, read_video_info

SIZING = Sizing(
    min_pixels=28 * 28,
    max_pixels=112 * 112,
    video_total_pixels=60_000,
    fps=2.0,
    min_frames=2,
    max_frames=16,
    decoder="pyav",
    patch_size=14,
    merge_size=2,
    temporal_patch_size=2,
)
IRREGULAR = [0.0, 0.1, 0.2, 0.3, 3.0, 3.1, 9.0, 9.1]


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("decodes")

    monkeypatch.setattr(container, "_decode_stream", refuse)
    monkeypatch.setattr(headers, "image_size", refuse)
    monkeypatch.setattr(Image.Image, "load", refuse)


class Counted(io.BytesIO):
    """A file that counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(-1 if size is None else size)
        self.count += len(data)
        return data


def encode(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, channels), dtype=np.uint8)


def outcome(act: Callable[[], Any]) -> tuple[Any, str]:
    """(result or None, reason of a MediaError or nothing)."""
    try:
        return act(), ""
    except MediaError as error:
        return None, error.reason


# Images


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "WEBP-LL", "WEBP-RGBA"])
@pytest.mark.parametrize("orientation", [None, *range(1, 9)])
def test_image_sizes_without_decoding(kind: str, orientation: int | None, undecoded: None) -> None:
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP-LL" else {}
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    data = _encoded(noise(34, 57, 4 if kind == "WEBP-RGBA" else 3), kind.split("-")[0], options)
    turned = orientation is not None and orientation >= 5
    assert read_image_size(io.BytesIO(data)) == ((57, 34) if turned else (34, 57))


_LOAD = Image.Image.load


def _encoded(pixels: np.ndarray, kind: str, options: dict[str, Any]) -> bytes:
    """Encoding needs what the fixture forbids."""
    refused = Image.Image.load
    Image.Image.load = _LOAD
    try:
        return encode(pixels, kind, **options)
    finally:
        Image.Image.load = refused


def test_an_orientation_after_the_pixels_is_found_without_decoding(undecoded: None) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = _encoded(noise(34, 57), "PNG", {})
    block = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(block)) + b"eXIf" + block + struct.pack(">I", zlib.crc32(b"eXIf" + block))
    assert read_image_size(io.BytesIO(data[:-12] + chunk + data[-12:])) == (57, 34)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_only_headers_are_read(kind: str) -> None:
    data = encode(noise(700, 900), kind, **({"lossless": True} if kind == "WEBP" else {"quality": 95} if kind == "JPEG" else {}))
    file = Counted(data)
    assert read_image_size(file) == (700, 900)
    assert len(data) > 500_000
    assert file.count < 100_000


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(1, 8),
    st.sampled_from(["PNG", "JPEG", "WEBP"]),
    st.booleans(),
    st.sampled_from([3, 4]),
)
def test_image_plans_equal_decoding(height: int, width: int, orientation: int, kind: str, lossless: bool, channels: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {"lossless": lossless} if kind == "WEBP" else {}
    data = encode(noise(height, width, 3 if kind == "JPEG" else channels), kind, exif=exif, **options)
    assert read_image_size(io.BytesIO(data)) == decode_image(data).shape[:2]
    planned = plan_medium(io.BytesIO(data), "image", SIZING)
    shown = decode_views(data, "image", [SIZING])[0]
    assert planned.grid == (1, shown.frames.shape[1] // 14, shown.frames.shape[2] // 14)
    assert planned.tokens == planned.grid[1] * planned.grid[2] // 4


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "WEBP"]), st.integers(0, 2**32), st.integers(1, 6), st.floats(0, 1))
def test_flipped_bytes_are_a_size_or_a_media_error(kind: str, seed: int, count: int, share: float) -> None:
    """And where the damaged file can be decoded, its size is the one that its header told."""
    draw = np.random.default_rng(seed)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = bytearray(encode(noise(20, 30), kind, exif=exif))
    for place in draw.integers(0, max(1, int(share * len(data))), size=count):
        data[place] ^= int(draw.integers(1, 256))
    told, problem = outcome(lambda: read_image_size(io.BytesIO(bytes(data))))
    found, other = outcome(lambda: decode_image(bytes(data)).shape[:2])
    assert {problem, other} <= {"", "format", "corrupt", "truncated", "too_large"}
    if found is not None and told is not None:
        assert told == found


# Videos


VIDEOS: list[tuple[int, dict[str, Any]]] = [
    (1, {"fps": 10}),
    (2, {"fps": 10}),
    (23, {"fps": 10, "bframes": 3}),
    (30, {"fps": 24000 / 1001, "bframes": 2}),
    (30, {"fps": 29.97}),
    (12, {"fps": 10, "tone": 3.0}),
]
TIMED: list[tuple[int, dict[str, Any]]] = [
    (8, {"times": IRREGULAR, "last": 0.9}),
    *[(8, {"times": IRREGULAR, "last": last, "bframes": n}) for n, last in ((1, 0.9), (2, 0.04), (3, 0.9), (4, 3.0))],
    (8, {"times": IRREGULAR, "last": 0.9, "bframes": 2, "tone": 3.0}),
    (20, {"times": [0.7 + i / 10 for i in range(20)]}),
    (20, {"times": [-0.3 + i / 10 for i in range(20)]}),
]


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".ts", ".avi"])
def test_video_headers_equal_what_decoding_finds(tmp_path: Path, suffix: str) -> None:
    for count, how in VIDEOS + (TIMED if suffix != ".avi" else []):
        data = make_video(tmp_path / f"a{suffix}", numbered_frames(count), **how).read_bytes()
        told, track = read_video_info(io.BytesIO(data))
        assert told == probe_video(data), how
        packets = container.scan(io.BytesIO(data))
        if track is not None:
            np.testing.assert_allclose(track.times, packets.times, atol=1e-9)
        planned = plan_medium(io.BytesIO(data), "video", SIZING, times=True)
        shown = decode_views(data, "video", [SIZING])[0]
        assert planned.grid == (len(shown.frames) // 2, shown.frames.shape[1] // 14, shown.frames.shape[2] // 14)
        assert planned.spacing == shown.spacing
        if packets.regular:
            assert planned.times is not None
            assert shown.times is not None
            np.testing.assert_allclose(planned.times, shown.times, atol=1e-9)


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".ts", ".avi"])
def test_no_frame_is_decoded_for_it(tmp_path: Path, suffix: str, undecoded: None) -> None:
    for count, how in VIDEOS:
        path = make_video(tmp_path / f"a{suffix}", numbered_frames(count), **how)
        with path.open("rb") as file:
            assert read_video_info(file)[0].n_frames >= count  # AVI pads a video to the length of its sound


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_rotation_is_read_from_the_tracks_matrix(tmp_path: Path, degrees: int, undecoded: None) -> None:
    path = make_video(tmp_path / "a.mp4", numbered_frames(10, 48, 64), fps=10, rotation=degrees)
    info, track = read_video_info(io.BytesIO(path.read_bytes()))
    assert info[:2] == ((48, 64) if degrees % 180 else (64, 48))
    assert track is not None
    # clockwise by `degrees` is counter-clockwise by the rest of a whole turn
    assert track.orientation == (4 - degrees // 90) % 4


def test_the_length_of_reordered_frames_with_gaps_is_the_headers(tmp_path: Path) -> None:
    """`mdhd` says 10.0 s, of which the decoding times cover 4.2, which is what the demuxer reports."""
    path = make_video(tmp_path / "a.mp4", numbered_frames(8), times=IRREGULAR, last=0.9, bframes=3)
    data = path.read_bytes()
    at = data.index(b"mdhd") + 4 + 12
    assert struct.unpack_from(">II", data, at) == (12_000, 120_000)
    at = data.index(b"stts") + 4 + 4
    entries = struct.unpack_from(">I", data, at)[0]
    pairs = struct.unpack_from(f">{2 * entries}I", data, at + 4)
    assert sum(count * step for count, step in zip(pairs[::2], pairs[1::2], strict=True)) == round(4.2 * 12_000)
    track = read_iso(io.BytesIO(data))
    assert track is not None
    assert track.duration == 10.0
    lies = bytearray(data)  # a length that the frames do not bear out is not believed
    struct.pack_into(">I", lies, data.index(b"mdhd") + 4 + 16, 12_000 * 60)
    told, problem = outcome(lambda: read_video_info(io.BytesIO(bytes(lies))))
    assert problem in ("", "corrupt")
    assert told is None or told[0].duration < 10.5


def test_the_index_at_the_end_is_found_and_little_is_read(tmp_path: Path) -> None:
    import av

    plain = make_video(tmp_path / "a.mp4", np.random.default_rng(0).integers(0, 255, (30, 96, 96, 3), dtype=np.uint8), fps=10)
    with av.open(str(plain)) as old, av.open(str(tmp_path / "b.mp4"), mode="w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)
    data = (tmp_path / "b.mp4").read_bytes()
    assert data.index(b"mdat") < data.index(b"moov")
    file = Counted(data)
    info, track = read_video_info(file)
    assert track is not None
    assert info == probe_video(data)
    assert file.count < len(data) / 3


def _fragmented(tmp_path: Path) -> bytes:
    import av

    plain = make_video(tmp_path / "a.mp4", numbered_frames(20), fps=10)
    with av.open(str(plain)) as old, av.open(str(tmp_path / "f.mp4"), mode="w", options={"movflags": "frag_keyframe+empty_moov"}) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)
    return (tmp_path / "f.mp4").read_bytes()


def test_what_is_not_plain_goes_to_the_demuxer(tmp_path: Path) -> None:
    data = _fragmented(tmp_path)
    assert read_iso(io.BytesIO(data)) is None
    assert read_video_info(io.BytesIO(data))[0] == probe_video(data)
    skewed = bytearray(make_video(tmp_path / "s.mp4", numbered_frames(5), fps=10).read_bytes())
    at = skewed.index(b"tkhd") + 4 + 40
    skewed[at : at + 4] = struct.pack(">i", 2 << 16)  # stretched, not turned
    assert read_iso(io.BytesIO(bytes(skewed))) is None
    assert read_video_info(io.BytesIO(bytes(skewed)))[0] == probe_video(bytes(skewed))


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4), suffix=st.sampled_from([".mp4", ".mkv", ".ts", ".avi"]))
def test_flipped_bytes_of_a_video_are_numbers_or_a_media_error(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"flip{suffix}"
    if not path.exists():
        make_video(path, numbered_frames(12, 16, 32), fps=10, bframes=2)
    draw = np.random.default_rng(seed)
    data = bytearray(path.read_bytes())
    for place in draw.integers(0, min(1200, len(data)), size=count):
        data[place] ^= int(draw.integers(1, 256))
    _, told = outcome(lambda: plan_medium(io.BytesIO(bytes(data)), "video", SIZING, times=True))
    _, found = outcome(lambda: decode_views(bytes(data), "video", [SIZING])[0])
    assert {told, found} <= {"", "format", "corrupt", "truncated", "too_large", "no_frames", "aspect"}


def test_damage_that_headers_show(tmp_path: Path) -> None:
    def reason(data: bytes, kind: Any) -> str:
        with pytest.raises(MediaError) as caught:
            plan_medium(io.BytesIO(data), kind, SIZING)
        return caught.value.reason

    clip = make_video(tmp_path / "a.mp4", numbered_frames(20), fps=10).read_bytes()
    assert reason(b"", "video") == "corrupt"
    assert reason(b"", "image") == "corrupt"
    assert reason(clip[:400], "video") == "truncated"
    assert reason(b"<html>", "image") == "format"
    assert reason(b"<html>", "video") == "format"
    assert reason(encode(noise(1, 300), "PNG"), "image") == "aspect"


# Orientation within bit streams


def _sei(kind: int) -> bytes:
    """H.264 unit of one message of four bytes."""
    return bytes([6, kind, 4, 1, 2, 3, 4, 0x80])


def test_messages_of_display_orientation_are_seen() -> None:
    avcc, picture = b"\x01d\x00\n\xff\xe1\0", b"\x65\x88\x84"

    def framed(*units: bytes) -> bytes:
        return b"".join(struct.pack(">I", len(unit)) + unit for unit in units)

    def marked(*units: bytes) -> bytes:
        return b"".join(b"\0\0\0\1" + unit for unit in units)

    assert says_nothing_of_rotation("h264", avcc, framed(_sei(5), picture))
    assert not says_nothing_of_rotation("h264", avcc, framed(_sei(5), _sei(47), picture))
    assert not says_nothing_of_rotation("h264", avcc, framed(bytes([6, 5, 2, 9, 9, 47, 1, 0x80, 0x80]), picture)), (
        "the second message of a unit"
    )
    assert says_nothing_of_rotation("h264", b"", marked(_sei(1), picture))
    assert not says_nothing_of_rotation("h264", b"", marked(_sei(47), picture))
    assert not says_nothing_of_rotation("h264", avcc, framed(picture)[:-1]), "a unit that does not fit"
    hevc_message = bytes([39 << 1, 1, 47, 1, 0, 0x80])
    assert not says_nothing_of_rotation("hevc", b"", marked(hevc_message))
    assert says_nothing_of_rotation("hevc", b"", marked(bytes([39 << 1, 1, 5, 1, 0, 0x80])))
    assert says_nothing_of_rotation("vp9", b"", b"")
    assert not says_nothing_of_rotation("mjpeg", b"", b"\xff\xd8")
