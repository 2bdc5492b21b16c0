"""Makers of good and bad media files for tests. Everything is written at test time; no binary fixtures are kept."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np

from vlmrl.media import container, video
from vlmrl.media.access import VIDEO_BYTES, read_media
from vlmrl.media.decode import DecodedMedium
from vlmrl.media.sampling import Backend, Decoder, request_times, resolve_decoder

TICKS = 12_000
"""Time base of the videos made here, per second: exact for the usual frame rates."""


def make_video(
    path: Path,
    frames: np.ndarray,
    *,
    fps: float | None = None,
    times: Sequence[float] | None = None,
    last: float = 0.1,
    rotation: int = 0,
    bframes: int = 0,
    keyframes: int = 12,
    color_range: int | None = None,
    tone: float | None = None,
) -> Path:
    """Write frames uint8 [T, H, W, 3] as H.264 (yuv420p, one thread); the suffix names the container (.mp4, .mkv, .ts, .avi).

    Frame i is shown from `i / fps`, or from `times[i]` seconds, the last one for `1 / fps` or `last` seconds. MP4 files have their
    index in front, so that a cut file can still be opened. `rotation` (clockwise degrees, MP4 only) is what a player has to turn.
    `tone` adds a silent audio track of that many seconds.
    """
    import av

    if (fps is None) == (times is None):
        raise ValueError("give either fps or times")
    if times is None:
        step = Fraction(1) / Fraction(cast(float, fps)).limit_denominator(100_000)
        stamps, length = [round(i * step * TICKS) for i in range(len(frames))], step
    else:
        stamps, length = [round(t * TICKS) for t in times], Fraction(last).limit_denominator(TICKS)
    options = {"movflags": "+faststart"} if path.suffix in (".mp4", ".mov") else {}
    with av.open(str(path), mode="w", options=options) as container:
        # without its vector code: in a process that used decord that writes other bytes now and then, and not every damage shows in those
        codec = {"preset": "fast", "crf": "8", "threads": "1", "bf": str(bframes), "g": str(keyframes), "x264-params": "asm=0"}
        stream = cast(Any, container.add_stream("libx264", rate=1 / length, options=codec))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        # AVI has no time stamps: its clock must tick once per frame.
        base = length if path.suffix == ".avi" else Fraction(1, TICKS)
        stream.codec_context.time_base = base
        if color_range is not None:
            stream.codec_context.color_range = color_range
        silence = cast(Any, container.add_stream("aac", rate=8000)) if tone is not None else None
        for stamp, pixels in zip(stamps, frames, strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = round(Fraction(stamp, TICKS) / base), base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if silence is not None and tone is not None:
            _add_silence(container, silence, tone)
    if rotation:
        rotate(path, rotation)
    return path


def make_audio(path: Path, seconds: float = 1.0) -> Path:
    """A silent audio file without any video stream."""
    import av

    with av.open(str(path), mode="w") as container:
        _add_silence(container, cast(Any, container.add_stream("aac", rate=8000)), seconds)
    return path


def _add_silence(container: Any, stream: Any, seconds: float) -> None:
    import av

    for start in range(0, round(seconds * 8000), 1024):
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), dtype=np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 8000, start
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def rotate(path: Path, degrees: int) -> None:
    """Set the display matrix of an MP4's first track, so that players turn it clockwise by 0, 90, 180 or 270 degrees."""
    set_matrix(path, *{0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}[degrees])


def set_matrix(path: Path, a: float, b: float, c: float, d: float) -> None:
    """Set the display matrix of an MP4's first track: stored pixel (x, y) is shown at (a x + c y, b x + d y)."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4
    at += 4 + (32 if data[at] == 1 else 20) + 16
    data[at : at + 36] = struct.pack(">9i", *(round(v * 65536) for v in (a, b, 0, c, d, 0, 0, 0)), 1 << 30)
    path.write_bytes(bytes(data))


def truncate(path: Path, share: float) -> Path:
    """Cut a file to this share of its bytes."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def damage(path: Path, *, share: float, count: int = 40) -> Path:
    """Overwrite `count` bytes with 0xA5 from this share of the file on."""
    data = bytearray(path.read_bytes())
    start = int(len(data) * share)
    data[start : start + count] = b"\xa5" * len(data[start : start + count])
    path.write_bytes(bytes(data))
    return path


def make_empty(path: Path) -> Path:
    """A file of no bytes."""
    path.write_bytes(b"")
    return path


def make_html(path: Path) -> Path:
    """What a download of a vanished picture often gives."""
    path.write_bytes(b"<!DOCTYPE html><html><body><h1>404 Not Found</h1></body></html>\n")
    return path


def make_bomb_png(path: Path, width: int, height: int) -> Path:
    """A valid all-black one-bit PNG of any declared size, compressed to almost nothing, written without holding its pixels."""
    row = b"\0" * (1 + (width + 7) // 8)
    packer = zlib.compressobj(9)
    body = io.BytesIO()
    for _ in range(height):
        body.write(packer.compress(row))
    body.write(packer.flush())
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", body.getvalue()), (b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, data) for kind, data in chunks))
    return path


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def numbered_frames(count: int, height: int = 48, width: int = 64) -> np.ndarray:
    """Frames uint8 [count, height, width, 3] whose number can be read back from their pixels (`frame_number`), also after H.264.

    The picture is not symmetric: its top left quarter is red, so that turned and mirrored frames can be told apart.
    """
    out = np.full((count, height, width, 3), 60, dtype=np.uint8)
    out[:, : height // 2, : width // 2] = (200, 40, 40)
    for i in range(count):
        for bit in range(8):
            left = bit * (width // 8)
            out[i, height * 3 // 4 :, left : left + width // 8] = 230 if i >> bit & 1 else 20
    return out


def frame_number(frame: np.ndarray) -> int:
    """The number that `numbered_frames` drew into an upright frame of any size."""
    height, width = frame.shape[:2]
    band = frame[height * 7 // 8].astype(np.int64).mean(axis=-1)
    return sum(1 << bit for bit in range(8) if band[int((bit + 0.5) * width / 8)] > 128)


@dataclass(frozen=True, kw_only=True)
class VideoFrames(DecodedMedium):
    """The chosen frames of one video, and what decoded them."""

    times: np.ndarray = field()
    duration: float = field()
    spacing: float = field()
    backend: Backend


def read_video(
    source: Path | bytes,
    *,
    fps: float,
    min_frames: int,
    max_frames: int,
    decoder: Decoder = "auto",
    frame_factor: int = 2,
    transform: video.Transform | None = None,
) -> VideoFrames:
    """Decode the frames on screen at the times of `request_times` at the size of the file, through what decodes files of prompts.

    `transform` maps uint8 [n, H, W, 3] to [n, h, w, 3], and is applied as frames arrive.
    """
    data = read_media(source.parent, source.name, max_bytes=VIDEO_BYTES) if isinstance(source, Path) else source
    backend = resolve_decoder(decoder)
    header = container.read_header(io.BytesIO(data))
    requests, spacing = request_times(header.info, fps=fps, min_frames=min_frames, max_frames=max_frames, frame_factor=frame_factor)
    view = video._View(requests, spacing, transform or (lambda frames: frames))
    (shown,), backend = video._read(data, header, [view], backend)
    return VideoFrames(**vars(shown), backend=backend)
