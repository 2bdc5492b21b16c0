"""Reads video files: the frames on screen at given presentation times.

A request for time t is answered by the frame that is on screen at t: the latest one whose time stamp is not after t. That is
right for any frame rate, also a changing one, where an index computed from an average rate is not. All decoders give the same frames:
the choice is made from the packets' own time stamps, and what decord or torchcodec shows is compared with PyAV.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vlmrl.errors import MediaError
from vlmrl.media import container
from vlmrl.media.access import VIDEO_BYTES, read_media
from vlmrl.media.decode import DecodedMedium
from vlmrl.media.headers import Planned, planned
from vlmrl.media.iso import IsoTrack, read_iso
from vlmrl.media.sampling import TICK, Backend, VideoInfo, check_bounds, frames_on_screen, resolve_decoder
from vlmrl.media.sizing import Sizing

Transform = Callable[[np.ndarray], np.ndarray]
Shown = tuple[np.ndarray, np.ndarray]
"""Frames uint8 [T, H, W, 3], and when each comes on screen, float64 [T] in seconds."""

LEVELS = 3
"""Largest difference between the decoders' pixels, of 255."""
_CHUNK = 16
_CHUNK_PIXELS = 16 * 1920 * 1080
"""Most pixels that another decoder is asked for at a time, unless one frame has more."""
_STRIDE = 4


@dataclass(frozen=True)
class _View:
    """What is asked of one pass over a file, which several may share."""

    requests: np.ndarray
    """float64 [T], ascending, in seconds."""
    spacing: float
    change: Transform
    """Applied to frames as they come."""


def shown_times(packets: container.Packets, requests: np.ndarray) -> np.ndarray:
    """Look up when the frames on screen at `requests` [T] come on screen.

    Returns:
        `DecodedMedium.times` of a regular file, float64 [T] in seconds.
    """
    return packets.times[frames_on_screen(packets.times, requests)]


def probe_video(source: Path | bytes | BinaryIO) -> VideoInfo:
    """Read (width, height, duration, n_frames) of the upright video from its headers; only its first frame is decoded, for the orientation.

    Raises:
        MediaError: `format`, `corrupt`, `truncated`, `no_frames`, `too_large`, or as `media.access`.
    """
    if isinstance(source, Path):
        source = read_media(source.parent, source.name, max_bytes=VIDEO_BYTES)
    return container.read_header(io.BytesIO(source) if isinstance(source, bytes) else source).info


def _read(data: bytes, header: container.Header, views: Sequence[_View], backend: Backend) -> tuple[list[DecodedMedium], Backend]:
    """The frames that each view asks for, of one pass over the file, and what decoded them.

    decord (only where it is asked for) shows concealed frames of damaged files, and wrong frames of some containers, without a word: 8
    frames late in an MPEG-TS file with B-frames, for example. Its frames are therefore used only where a checking pass of PyAV sees the
    same ones, and so are torchcodec's; else PyAV's are. `pyav`, which `auto` is, needs no second pass.
    """
    packets = container.scan(io.BytesIO(data))
    container.check_share(header, packets)
    chosen: list[Shown] | None = None
    # other decoders are asked for frames by number; in an irregular file numbers do not mean the same to all
    if backend != "pyav" and packets.regular:
        chosen = _by_other(backend, data, header, packets, views)
    if chosen is None:
        backend = "pyav"
        chosen = _by_pyav(data, header, packets, views)
    about: dict[str, Any] = {"duration": header.info.duration, "size": (header.info.height, header.info.width)}
    return [
        DecodedMedium(frames=frames, times=times, spacing=view.spacing, **about)
        for view, (frames, times) in zip(views, chosen, strict=True)
    ], backend


def plan_video(file: BinaryIO, sizing: Sizing, times: bool) -> Planned:
    """Plan a video file, as `headers.plan_medium` says."""
    info, track = read_video_info(file)
    requests, spacing = sizing.requests(info)
    shown = None
    if times and track is not None:
        shown = track.times[frames_on_screen(track.times, requests)]
    elif times:
        shown = shown_times(container.scan(file), requests)
    height, width = sizing.target(info.height, info.width, frames=len(requests))
    grid = (len(requests) // sizing.temporal_patch_size, height // sizing.patch_size, width // sizing.patch_size)
    return planned(grid, sizing, spacing, shown, info.duration)


def read_video_info(file: BinaryIO) -> tuple[VideoInfo, IsoTrack | None]:
    """Read what `probe_video` finds, without decoding where headers suffice.

    Returns:
        (sides, duration and number of frames; the sample tables, for a plain MP4 or MOV file, else None).

    Raises:
        MediaError: `format`, `corrupt`, `truncated`, `no_frames` or `too_large`.
    """
    file.seek(0)
    if container.sniff(file.read(600)) == "mp4":
        container.check_whole(file)
        track = read_iso(file)
        if track is not None:
            width, height = (track.height, track.width) if track.orientation % 2 else (track.width, track.height)
            check_bounds(width, height, track.duration, len(track.times))
            return VideoInfo(width, height, track.duration, len(track.times)), track
    return container.read_header(file, decode=False).info, None


def decode_video(data: bytes, sizings: Sequence[Sizing]) -> list[DecodedMedium]:
    """Decode a video file, as `decode.decode_views` says: the frames on screen at the times of `request_times`."""
    if len(data) > VIDEO_BYTES:
        raise MediaError("too_large", f"video: {len(data)} bytes, the limit is {VIDEO_BYTES}")
    backend = resolve_decoder(sizings[0].decoder)
    header = container.read_header(io.BytesIO(data))
    views: list[_View] = []
    for sizing in sizings:
        requests, spacing = sizing.requests(header.info)
        views.append(_View(requests, spacing, partial(sizing.shown, frames=len(requests))))
    return _read(data, header, views, backend)[0]


def read_frames(data: bytes, requests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decode the frames on screen at these times, float64 [T] ascending from 0, in seconds, by PyAV.

    Returns:
        (frames uint8 [T, H, W, 3] upright, when each comes on screen float64 [T] in seconds).

    Raises:
        MediaError: as decoding the file for a prompt.
    """
    header = container.read_header(io.BytesIO(data))
    packets = container.scan(io.BytesIO(data))
    container.check_share(header, packets)
    return _by_pyav(data, header, packets, [_View(requests, 0.0, lambda frames: frames)])[0]


def _by_pyav(data: bytes, header: container.Header, packets: container.Packets, views: Sequence[_View]) -> list[Shown]:
    """The frame on screen at each request of each view."""
    frames: list[list[np.ndarray]] = [[] for _ in views]
    times: list[list[float]] = [[] for _ in views]
    count, current = 0, None

    def show(shown: container.Decoded, until: float) -> None:
        pixels = None
        for view, shots, stamps in zip(views, frames, times, strict=True):
            asked = 0
            # a frame answers all requests that fall before the next one comes; it is converted once, and only if there are any
            while len(shots) + asked < len(view.requests) and view.requests[len(shots) + asked] + TICK < until:
                asked += 1
            if asked:
                pixels = shown.pixels()[None] if pixels is None else pixels
                shots.extend([view.change(pixels)[0]] * asked)
                stamps.extend([shown.time] * asked)

    def taken() -> list[Shown]:
        return [(np.stack(shots), np.array(stamps, dtype=np.float64)) for shots, stamps in zip(frames, times, strict=True)]

    for decoded in container.decode(data, header):
        count += 1
        if current is not None:
            show(current, decoded.time)
        current = decoded
        # all answered: the rest of the file is not decoded
        if all(len(shots) == len(view.requests) for view, shots in zip(views, frames, strict=True)):
            return taken()
    _check_count(count, packets)
    if current is not None:
        show(current, math.inf)
    return taken()


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


def _by_other(name: str, data: bytes, header: container.Header, packets: container.Packets, views: Sequence[_View]) -> list[Shown] | None:
    """The same through another decoder; None where it fails, or lists or shows other frames than PyAV."""
    places = [frames_on_screen(packets.times, view.requests) for view in views]
    wanted = [np.unique(of_view) for of_view in places]
    distinct = np.unique(np.concatenate(wanted))
    pieces: list[list[np.ndarray]] = [[] for _ in views]
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
        # 2 ticks: both times may have been rounded to one
        if piece.shape[1:] != (header.info.height, header.info.width, 3) or np.abs(times - packets.times[asked]).max() > 2 * TICK:
            return None
        samples.extend(piece[:, ::_STRIDE, ::_STRIDE].copy())
        for view, own, parts in zip(views, wanted, pieces, strict=True):
            mine = np.isin(asked, own)
            if mine.any():
                parts.append(view.change(piece if mine.all() else piece[mine]))
    last = max(float(view.requests[-1]) for view in views)
    if not _confirmed(data, header, packets, dict(zip(distinct.tolist(), samples, strict=True)), last):
        return None
    # `own` is sorted, so this is the index of each request's frame among the decoded ones
    return [
        (np.concatenate(parts)[np.searchsorted(own, of_view)], packets.times[of_view])
        for parts, own, of_view in zip(pieces, wanted, places, strict=True)
    ]


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
