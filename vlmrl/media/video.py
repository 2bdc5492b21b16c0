"""Reads video files: the frames on screen at given presentation times.

A request for time t is answered by the frame that is on screen at t: the latest one whose time stamp is not after t. That is
right for any frame rate, also a changing one, where an index computed from an average rate is not. All decoders give the same frames:
the choice is made from the packets' own time stamps, and what decord or torchcodec shows is compared with PyAV.
"""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from vlmrl.errors import ConfigError, MediaError
from vlmrl.media import container
from vlmrl.media.access import VIDEO_BYTES, read_media
from vlmrl.media.container import VideoInfo

Decoder = Literal["auto", "decord", "pyav", "torchcodec"]
Backend = Literal["decord", "pyav", "torchcodec"]
Transform = Callable[[np.ndarray], np.ndarray]

TICK = 1e-3
"""Seconds. Matroska rounds time stamps to this; a frame that starts less than this after t counts as on screen at t."""
LEVELS = 3
"""Largest difference between the decoders' pixels, of 255."""
_CHUNK = 16
_CHUNK_PIXELS = 16 * 1920 * 1080
"""Most pixels that another decoder is asked for at a time, unless one frame has more."""
_STRIDE = 4


@dataclass(frozen=True, kw_only=True)
class VideoFrames:
    """The chosen frames of one video."""

    frames: np.ndarray
    """uint8 [T, H, W, 3], upright (after `transform`, where one was given)."""
    times: np.ndarray
    """float64 [T]: when each frame comes on screen, in seconds from the first frame of the file."""
    duration: float
    """Seconds."""
    spacing: float
    """Seconds between two requests."""
    size: tuple[int, int]
    """(H, W) of the file's upright frames."""
    backend: Backend
    """What decoded."""


def request_times(info: VideoInfo, *, fps: float, min_frames: int, max_frames: int, frame_factor: int = 2) -> tuple[np.ndarray, float]:
    """(times asked for, float64 [T] in seconds; spacing between them in seconds). T is a multiple of `frame_factor`.

    0, 1/fps, 2/fps, ... up to the duration; one more where the factor needs it (it shows the last frame). Where these are fewer
    than `min_frames` or more than `max_frames`, that many are spread evenly over the duration. A video of one frame is that
    frame `frame_factor` times.

    Raises:
        ValueError: no multiple of `frame_factor` lies within [min_frames, max_frames].
    """
    low = math.ceil(min_frames / frame_factor) * frame_factor
    high = max_frames // frame_factor * frame_factor
    if high < low or fps <= 0:
        raise ValueError(f"no multiple of {frame_factor} frames in [{min_frames}, {max_frames}], or fps {fps} is not positive")
    if info.n_frames == 1:
        return np.arange(frame_factor) / fps, 1 / fps
    natural = max(1, math.ceil((info.duration - TICK) * fps))
    if low <= natural <= high or info.duration <= 0:
        count = max(low, math.ceil(natural / frame_factor) * frame_factor)
        return np.arange(count) / fps, 1 / fps
    count = low if natural < low else high
    return np.arange(count) * (info.duration / count), info.duration / count


def shown_times(packets: container.Packets, requests: np.ndarray) -> np.ndarray:
    """When the frames on screen at `requests` [T] come on screen: `VideoFrames.times` of a regular file, float64 [T] in seconds."""
    return packets.times[frames_on_screen(packets.times, requests)]


def frames_on_screen(times: np.ndarray, requests: np.ndarray) -> np.ndarray:
    """Number of the frame on screen at each request, int [T]. `times`: when each frame comes on screen, ascending, in seconds."""
    return np.searchsorted(times, requests + TICK, side="right") - 1


def probe_video(source: Path | bytes | BinaryIO) -> VideoInfo:
    """(width, height, duration, n_frames) of the upright video from its headers; only its first frame is decoded, for the orientation.

    Raises:
        MediaError: `format`, `corrupt`, `truncated`, `no_frames`, `too_large`, or as `media.access`.
    """
    if isinstance(source, Path):
        source = read_media(source.parent, source.name, max_bytes=VIDEO_BYTES)
    return container.read_header(io.BytesIO(source) if isinstance(source, bytes) else source).info


def read_video(
    source: Path | bytes,
    *,
    fps: float,
    min_frames: int,
    max_frames: int,
    decoder: Decoder = "auto",
    frame_factor: int = 2,
    transform: Transform | None = None,
) -> VideoFrames:
    """Decode the frames on screen at the times of `request_times`.

    `transform` maps uint8 [n, H, W, 3] to [n, h, w, 3] and is applied as frames arrive, so that a long video never lies in
    memory at full size. decord (only where it is asked for) shows concealed frames of damaged files, and wrong
    frames of some containers, without a word: 8 frames late in an MPEG-TS file with B-frames, for example. Its frames are
    therefore used only where a checking pass of PyAV sees the same ones, and so are torchcodec's; else PyAV's are. `pyav`, which `auto` is,
    needs no second pass.

    Raises:
        MediaError: `format`, `corrupt`, `truncated`, `no_frames`, `too_large`, or as `media.access`.
        ConfigError: decord or torchcodec is asked for and not installed.
        ValueError: see `request_times`.
    """
    data = read_media(source.parent, source.name, max_bytes=VIDEO_BYTES) if isinstance(source, Path) else source
    if len(data) > VIDEO_BYTES:
        raise MediaError("too_large", f"video: {len(data)} bytes, the limit is {VIDEO_BYTES}")
    backend = resolve_decoder(decoder)
    header = container.read_header(io.BytesIO(data))
    packets = container.scan(io.BytesIO(data))
    container.check_share(header, packets)
    requests, spacing = request_times(header.info, fps=fps, min_frames=min_frames, max_frames=max_frames, frame_factor=frame_factor)
    change = transform or (lambda frames: frames)
    chosen: tuple[np.ndarray, np.ndarray] | None = None
    if backend != "pyav" and packets.regular:
        chosen = _by_other(backend, data, header, packets, requests, change)
    if chosen is None:
        backend = "pyav"
        chosen = _by_pyav(data, header, packets, requests, change)
    size = (header.info.height, header.info.width)
    return VideoFrames(frames=chosen[0], times=chosen[1], duration=header.info.duration, spacing=spacing, size=size, backend=backend)


def read_frames(data: bytes, requests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(frames uint8 [T, H, W, 3], when each comes on screen float64 [T]) at these times, float64 [T] ascending from 0, in seconds; PyAV.

    Raises:
        MediaError: as `read_video`.
    """
    header = container.read_header(io.BytesIO(data))
    packets = container.scan(io.BytesIO(data))
    container.check_share(header, packets)
    return _by_pyav(data, header, packets, requests, lambda frames: frames)


def resolve_decoder(decoder: Decoder) -> Backend:
    """The decoder that is tried first: PyAV, unless another one is asked for.

    PyAV is faster (1.6 times the clips per second of decord, docs/benchmarks/loader.md), because frames of others need a checking pass of
    PyAV.

    Raises:
        ConfigError: the one that is asked for is not installed.
    """
    if decoder in ("auto", "pyav"):
        return "pyav"
    if importlib.util.find_spec(decoder) is None:
        raise ConfigError(f"media.decoder: '{decoder}' is not installed; use 'auto' (PyAV), or `pip install 'vlmrl[{decoder}]'`")
    return decoder


def _by_pyav(
    data: bytes, header: container.Header, packets: container.Packets, requests: np.ndarray, change: Transform
) -> tuple[np.ndarray, np.ndarray]:
    """(frames, times) of the frame on screen at each request."""
    frames: list[np.ndarray] = []
    times: list[float] = []
    count, current = 0, None

    def show(shown: container.Decoded, until: float) -> None:
        asked = 0
        while len(frames) + asked < len(requests) and requests[len(frames) + asked] + TICK < until:
            asked += 1
        if asked:
            pixels = change(shown.pixels()[None])[0]
            frames.extend([pixels] * asked)
            times.extend([shown.time] * asked)

    for decoded in container.decode(data, header):
        count += 1
        if current is not None:
            show(current, decoded.time)
        current = decoded
        if len(frames) == len(requests):
            return np.stack(frames), np.array(times, dtype=np.float64)
    _check_count(count, packets)
    if current is not None:
        show(current, math.inf)
    return np.stack(frames), np.array(times, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """A file that another decoder than PyAV has opened."""

    count: int
    """Frames that it lists."""
    batch: Callable[[list[int]], tuple[np.ndarray, np.ndarray]]
    """Numbers of frames -> (uint8 [n, H, W, 3], float64 [n] seconds since the first frame)."""


def _open_decord(data: bytes) -> _Reader:
    import decord

    decord.logging.set_level(decord.logging.QUIET)
    reader: Any = decord.VideoReader(io.BytesIO(data), num_threads=1)
    stamps = np.asarray(reader.get_frame_timestamp(list(range(len(reader)))), dtype=np.float64)[:, 0]
    return _Reader(count=len(stamps), batch=lambda places: (reader.get_batch(places).asnumpy(), stamps[places] - stamps[0]))


def _open_torchcodec(data: bytes) -> _Reader:
    from torchcodec.decoders import VideoDecoder  # pyright: ignore[reportMissingImports]

    # it reads all packets first: places by an average rate are wrong where the rate changes
    reader: Any = VideoDecoder(data, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact")
    first = float(reader.metadata.begin_stream_seconds_from_content)

    def batch(places: list[int]) -> tuple[np.ndarray, np.ndarray]:
        found = reader.get_frames_at(places)
        return found.data.numpy(), found.pts_seconds.double().numpy() - first

    return _Reader(count=len(reader), batch=batch)


_OPEN: dict[str, Callable[[bytes], _Reader]] = {"decord": _open_decord, "torchcodec": _open_torchcodec}


def _by_other(
    name: str, data: bytes, header: container.Header, packets: container.Packets, requests: np.ndarray, change: Transform
) -> tuple[np.ndarray, np.ndarray] | None:
    """The same through another decoder; None where it fails, or lists or shows other frames than PyAV."""
    places = frames_on_screen(packets.times, requests)
    distinct = np.unique(places)
    pieces: list[np.ndarray] = []
    samples: list[np.ndarray] = []
    several = max(1, min(_CHUNK, _CHUNK_PIXELS // (header.info.height * header.info.width)))
    try:
        reader = _OPEN[name](data)
    except (MemoryError, ImportError):
        raise
    except Exception:  # noqa: BLE001 - the media border: PyAV reads the file instead and names what is wrong with it
        return None
    if reader.count != len(packets.times):
        return None
    for start in range(0, len(distinct), several):
        asked = distinct[start : start + several]
        try:
            piece, times = reader.batch(asked.tolist())
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - as above
            return None
        if piece.shape[1:] != (header.info.height, header.info.width, 3) or np.abs(times - packets.times[asked]).max() > 2 * TICK:
            return None
        samples.extend(piece[:, ::_STRIDE, ::_STRIDE].copy())
        pieces.append(change(piece))
    if not _confirmed(data, header, packets, dict(zip(distinct.tolist(), samples, strict=True)), float(requests[-1])):
        return None
    return np.concatenate(pieces)[np.searchsorted(distinct, places)], packets.times[places]


def _confirmed(data: bytes, header: container.Header, packets: container.Packets, samples: dict[int, np.ndarray], last: float) -> bool:
    """Whether PyAV finds the same pictures (thinned out to `samples`, by frame number). Damage on the way raises as in `_by_pyav`."""
    count = 0
    for decoded in container.decode(data, header):
        if count in samples:
            seen = decoded.pixels()[::_STRIDE, ::_STRIDE]
            if np.abs(seen.astype(np.int16) - samples[count]).max() > LEVELS:
                return False
        count += 1
        if decoded.time > last + TICK:
            return True
    _check_count(count, packets)
    return count > max(samples)


def _check_count(count: int, packets: container.Packets) -> None:
    if count == 0:
        raise MediaError("no_frames", "video: no frame can be decoded")
    if count < container.LEAST_SHARE * len(packets.times):
        raise MediaError("truncated", f"video: {count} of {len(packets.times)} frames can be decoded")
