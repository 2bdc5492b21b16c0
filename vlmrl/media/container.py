"""Reads video containers with PyAV: what the header promises, which packets are there, and frames in presentation order.

The container format is recognised by its first bytes and forced on the demuxer, so that a playlist with the name of a video
(HLS, concat) can never make the library open other files or addresses. Times are seconds from the first shown frame.
"""

from __future__ import annotations

import importlib
import io
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from vlmrl.errors import MediaError
from vlmrl.media.border import border
from vlmrl.media.iso import read_iso
from vlmrl.media.rotation import orientation_of, says_nothing_of_rotation, upright
from vlmrl.media.sampling import MAX_FRAME_PIXELS, VideoInfo, check_bounds

BACK = 0.5
"""Seconds by which decoding times may run back within a stream; they never do in a sound one."""
LEAST_SHARE = 0.9
"""Least share of the promised duration that must be there."""

_PROJECTION, _CLUSTER, _HEAD_BYTES = b"\x76\x70", b"\x1f\x43\xb6\x75", 1 << 20
_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")
_PICTURE_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")


@dataclass(frozen=True, kw_only=True)
class Header:
    """`VideoInfo` and what reading needs besides."""

    info: VideoInfo
    format: str
    """Name of the demuxer: mp4, matroska, avi or mpegts."""
    orientation: int
    """What makes a stored frame upright: `rotation.upright`."""
    promised: float | None
    """Seconds that the file says it has; None where it does not say."""
    whole_file: bool
    """Whether `promised` is about the longest stream of the file and not about the video alone."""
    listed: int | None = None
    """Frames that the index lists and all of which are shown; None where there is no such index."""


@dataclass(frozen=True, kw_only=True)
class Packets:
    """The packets that are really in the file, found without decoding."""

    times: np.ndarray
    """float64 [n], ascending, seconds from the first: when each frame comes on screen."""
    end: float
    """When the last frame leaves the screen."""
    file_end: float
    """The same over all streams of the file."""
    regular: bool
    """Whether every frame has its own time, none is hidden by an edit list, and no packet is damaged."""


@dataclass(frozen=True)
class Decoded:
    """One frame in presentation order; `pixels()` converts it to upright RGB, uint8 [H, W, 3]."""

    time: float
    frame: Any
    orientation: int
    converter: Any
    """Of all frames of a stream: to set one up costs more than to convert a small frame."""

    def pixels(self) -> np.ndarray:
        with border("video"):
            stored = self.converter.reformat(self.frame, format="rgb24").to_ndarray()
        return np.ascontiguousarray(upright(stored, self.orientation))


def sniff(head: bytes) -> str:
    """Name the demuxer for a file that starts with these bytes (600 are enough).

    Raises:
        MediaError: `format`.
    """
    if not head:
        raise MediaError("corrupt", "video: the file is empty")
    # AVIF and HEIC pictures are ISO files too
    if head[4:8] in _BOXES and not (head[4:8] == b"ftyp" and head[8:12] in _PICTURE_BRANDS):
        return "mp4"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    # sync bytes of three packets of 188 bytes; one alone is the letter G
    if head[:1] == b"\x47" and head[188:189] == b"\x47" and head[376:377] == b"\x47":
        return "mpegts"
    raise MediaError("format", "video: the content is not MP4, MOV, Matroska, WebM, AVI or MPEG-TS")


def read_header(file: BinaryIO, *, decode: bool = True) -> Header:
    """Read what the file says about its video.

    Decodes one frame, which alone tells the orientation in every container; `decode=False` does without where the file cannot hold one.
    Where the header lacks the number of frames or the duration (Matroska, fragments), packets are counted, still without decoding.

    Raises:
        MediaError: `format`, `corrupt`, `truncated`, `no_frames` or `too_large`.
    """
    with _opened(file) as (container, stream, name):
        with border("video"):
            width, height = int(stream.codec_context.width), int(stream.codec_context.height)
            n_frames = int(stream.frames)
            promised, whole_file = _promise(container, stream, name)
        check_bounds(width, height, promised, n_frames)
        orientation = 0 if not decode and _is_upright(container, stream, name, file) else None
    if orientation is None:
        orientation = _orientation(file)
    track = read_iso(file) if name == "mp4" else None
    if track is not None and promised is not None:
        promised = max(promised, track.duration)  # the demuxer counts decoding times, which may end before the last frames are shown
    # a duration that is about the longest stream may be that of the sound; only packets tell the video's own
    complete = n_frames > 0 and promised is not None and not whole_file
    duration = promised
    if not complete or duration is None:
        packets = scan(file)
        n_frames, duration = len(packets.times), packets.end
        check_bounds(width, height, duration, n_frames)
    # odd: a quarter turn, which swaps the sides
    if orientation % 2:
        width, height = height, width
    info = VideoInfo(width, height, duration, n_frames)
    listed = None if track is None else len(track.times)
    return Header(info=info, format=name, orientation=orientation, promised=promised, whole_file=whole_file, listed=listed)


def _orientation(file: BinaryIO) -> int:
    """What the display matrix of the first frame asks for, wherever it was written: in the track, in the bit stream, in EXIF."""
    with _opened(file) as (container, stream, name):
        first = next(_decode_stream(container, stream, name, 0), None)
        if first is None:
            raise MediaError("no_frames", "video: no frame can be decoded")
        with border("video"):
            # the decoder gathers it from wherever it was written. A 3 x 3 matrix by rows (a, b, u, c, d, v, x, y, w); without one, identity
            found = [bytes(data) for data in first.frame.side_data if data.type.name == "DISPLAYMATRIX"]
            a, b, _, c, d, *_ = struct.unpack("=9i", found[0]) if found else (1, 0, 0, 0, 1)
    return orientation_of(a, b, c, d)


def _is_upright(container: Any, stream: Any, name: str, file: BinaryIO) -> bool:
    """Whether neither the container nor the bit stream has a place where a rotation is written. False where it cannot be told."""
    if name == "mp4":
        return False  # the track's matrix may turn it; files where headers suffice were read by `iso`
    with border("video"):
        codec, extra = str(stream.codec_context.name), bytes(stream.codec_context.extradata or b"")
        packet = next((bytes(p) for p in _packets(container, stream) if p.size), None)
    if packet is None or not says_nothing_of_rotation(codec, extra, packet):
        return False
    file.seek(0)
    # Matroska writes it into a `Projection` element of the track, before the first cluster
    return name != "matroska" or _PROJECTION not in file.read(_HEAD_BYTES).partition(_CLUSTER)[0]


def scan(file: BinaryIO) -> Packets:
    """Read all packets, decode none. A damaged one is the last that counts: a cut file ends so. Gaps, also of minutes, are no damage:
    a frame stays on screen until the next one comes.

    Raises:
        MediaError: `format`, `corrupt` (a damaged packet that is not the last, or time stamps that start again: files that were joined),
            `truncated` or `no_frames` (there is no packet at all).
    """
    shown: list[tuple[float, float]] = []
    everything: list[tuple[float, float]] = []
    broken: float | None = None
    clock = -math.inf
    with _opened(file) as (container, stream, name):
        regular = name != "avi"  # AVI stores no presentation times
        for packet in _packets(container):
            with border("video"):
                damaged, hidden, video = packet.is_corrupt, packet.is_discard, packet.stream_index == stream.index
                start, length = _packet_times(packet, ordered=name == "avi")
            if broken is not None and video and start is not None:
                raise _joined(f"is damaged after {max(0.0, broken):.2f} s, and goes on behind that")
            if damaged:
                regular = False
                # kept as seconds from the first frame; what comes behind it decides whether the file was cut here or is damaged inside
                broken = start - min((first for first, _ in shown), default=start) if video and start is not None else broken
                continue
            if start is None or broken is not None:
                continue
            if video and packet.dts is not None:
                decoded = float(packet.dts * packet.time_base)
                if decoded < clock - BACK:
                    raise _joined(f"starts again after {clock - min(first for first, _ in shown):.2f} s: its time stamps run back")
                # decoding times, since presentation times run back at every reordered frame
                clock = max(clock, decoded)
            everything.append((start, start + length))
            if video and hidden:
                regular = False
            elif video:
                shown.append((start, length))
    if not shown:
        raise MediaError("no_frames", "video: the video stream has no packets")
    shown.sort()
    times = np.array([start for start, _ in shown], dtype=np.float64)
    first = float(times[0])
    mean = float(times[-1] - first) / (len(times) - 1) if len(times) > 1 else 0.0
    # two frames with one time: a number of a frame would not mean the same to every decoder
    regular = regular and bool((np.diff(times) > 0).all())
    # a last packet without a length stays as long as the frames do on average
    end = float(times[-1]) + (shown[-1][1] or mean)
    file_end = max(end, max(stop for _, stop in everything)) - min(start for start, _ in everything)
    return Packets(times=times - first, end=end - first, file_end=file_end, regular=regular)


def _joined(what: str) -> MediaError:
    advice = "write it anew (ffmpeg -i FILE -c copy NEW.mp4), or give the parts as videos of their own"
    return MediaError("corrupt", f"video: {what}. Files that were joined end to end look so; {advice}")


def check_share(header: Header, packets: Packets) -> None:
    """Check that the file holds what its header promises.

    Raises:
        MediaError: `truncated` or `corrupt` (the frames run on far beyond the header's end).
    """
    if header.promised is None:
        return
    there = packets.file_end if header.whole_file else packets.end
    if header.listed is not None and len(packets.times) >= header.listed:
        there = header.promised  # nothing is missing
    if there < LEAST_SHARE * header.promised:
        raise MediaError("truncated", f"video: {there:.2f} s of the promised {header.promised:.2f} s are in the file")
    if header.listed is not None and len(packets.times) < LEAST_SHARE * header.listed:
        raise MediaError("truncated", f"video: {len(packets.times)} of {header.listed} listed frames are in the file")
    # how long the last frame stays is not in its packet where frames are reordered; an index says it better
    end = packets.end if header.listed is None else float(packets.times[-1])
    frame = min(packets.end / len(packets.times), header.info.duration / max(1, header.info.n_frames))
    if end > header.info.duration / LEAST_SHARE + 2 * frame:
        raise MediaError("corrupt", f"video: the header says {header.info.duration:.2f} s but its frames run to {end:.2f} s")


def decode(data: bytes, header: Header) -> Iterator[Decoded]:
    """Decode every shown frame in presentation order, upright. One thread; no seeking.

    Raises:
        MediaError: `corrupt`, a frame is damaged or has another size than the header says.
    """
    width, height = header.info.width, header.info.height
    if header.orientation % 2:
        width, height = height, width
    with _opened(io.BytesIO(data)) as (container, stream, name):
        for decoded in _decode_stream(container, stream, name, header.orientation):
            if (decoded.frame.width, decoded.frame.height) != (width, height):
                size, where = f"{decoded.frame.width}x{decoded.frame.height}", f"at {decoded.time:.2f} s"
                how = "its size changes, cut or scale it ahead of time" if decoded.time else "the header is wrong"
                raise MediaError("corrupt", f"video: the frame {where} has {size} pixels, not {width}x{height}: {how}")
            yield decoded


@contextmanager
def _opened(file: BinaryIO) -> Iterator[tuple[Any, Any, str]]:
    """(container, its video stream, demuxer name), from the start of the file."""
    import av

    file.seek(0)
    name = sniff(file.read(600))
    if name == "mp4":
        check_whole(file)
    file.seek(0)
    with border("video"):
        container = av.open(file, mode="r", format=name)
    try:
        with border("video"):
            # cover pictures are stored as video streams
            pictures = importlib.import_module("av.stream").Disposition.attached_pic
            streams = [s for s in container.streams.video if not s.disposition & pictures]
        if not streams:
            raise MediaError("no_frames", "video: the file has no video stream")
        streams[0].thread_type = "NONE"
        yield container, streams[0], name
    finally:
        container.close()


def check_whole(file: BinaryIO) -> None:
    """Check that an ISO file has one whole index.

    A file whose `moov` comes first can be read up to where it was cut; how much is there is then measured.

    Raises:
        MediaError: `truncated`, it ends within its index or has none; `corrupt`, it has a second one: files that were joined end to
            end, of which players show the first.
    """
    size = file.seek(0, io.SEEK_END)
    position, indexes = 0, 0
    while position + 8 <= size:
        file.seek(position)
        head = file.read(16)
        length, kind = int.from_bytes(head[:4], "big"), head[4:8]
        # ISO 14496-12, 4.2: a size of 1 says that 64 bits of it follow the kind
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        indexes += kind == b"moov"
        if indexes == 2:
            raise _joined(f"has a second index ('moov') at byte {position}")
        if length < 8 or (kind == b"moov" and position + length > size):
            indexes -= kind == b"moov"
            break
        position += length
    if not indexes:
        raise MediaError("truncated", "video: the file ends before its contents do, or lacks its index ('moov')")


def _packets(container: Any, *streams: Any) -> Iterator[Any]:
    """Packets of these streams, or of all."""
    packets = container.demux(*streams)
    while True:
        with border("video"):
            packet = next(packets, None)
        if packet is None:
            return
        yield packet


def _packet_times(packet: Any, *, ordered: bool) -> tuple[float | None, float]:
    """(start, length) in seconds; start is None for the empty packet at the end. `ordered` takes the decoding time."""
    ticks = packet.dts if ordered or packet.pts is None else packet.pts
    if ticks is None or packet.size == 0:
        return None, 0.0
    return float(ticks * packet.time_base), float((packet.duration or 0) * packet.time_base)


def _decode_stream(container: Any, stream: Any, name: str, orientation: int) -> Iterator[Decoded]:
    """Frames with times from the first one; times never run backwards. Stops at the first packet that is marked as damaged."""
    from av.video.reformatter import VideoReformatter

    # the bit stream may say another size than the header that `check_bounds` has seen
    stream.codec_context.options = {"max_pixels": str(MAX_FRAME_PIXELS)}
    rate = float(stream.average_rate or 0)
    first = last = None
    count = 0
    converter = VideoReformatter()
    for packet in _packets(container, stream):
        with border("video"):
            if packet.is_corrupt:
                return
            frames = packet.decode()
        for frame in frames:
            if frame.is_corrupt:
                raise MediaError("corrupt", f"video: frame {count} is damaged")
            # AVI stores a rate and no times
            time = count / rate if name == "avi" and rate else frame.time
            count += 1
            if time is None:
                raise MediaError("corrupt", f"video: frame {count - 1} has no time")
            first = time if first is None else first
            last = time if last is None else max(last, time)
            yield Decoded(float(last - first), frame, orientation, converter)


def _promise(container: Any, stream: Any, name: str) -> tuple[float | None, bool]:
    """(seconds that the header says, if it does; whether they are those of the longest stream instead of the video's own)."""
    if name == "mpegts":  # it has no such header; the library's figure comes from the packets
        return None, False
    if stream.duration:
        return float(stream.duration * stream.time_base), False
    # Matroska says when the last frame ends, counted from zero, and not how long that is after the first one.
    tagged = _clock(stream.metadata.get("DURATION", ""))
    if tagged is not None:
        return tagged - float((stream.start_time or 0) * stream.time_base), False
    if container.duration:
        start = (container.start_time or 0) if name == "matroska" else 0
        return (container.duration - start) / 1e6, True
    return None, False


def _clock(text: str) -> float | None:
    """Seconds of `00:00:03.933000000`."""
    parts = text.split(":")
    try:
        hours, minutes, seconds = (float(part) for part in parts)
    except ValueError:
        return None
    return hours * 3600 + minutes * 60 + seconds
