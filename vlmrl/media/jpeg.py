"""Tells whether a JPEG holds its whole picture. libjpeg only warns where data are missing, and Pillow drops the warning: the rest is grey.

Three things are looked at: the list of scans (a progressive file that was cut between two of them lacks its last ones), the restart
markers (their number and order are determined by the size), and the coded data themselves, which FFmpeg decodes a second time: it says
where it has to read on beyond the end of a scan. That takes about as long as Pillow's own decoding.
"""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass, field

from PIL import Image

from vlmrl.errors import MediaError
from vlmrl.media.border import border

_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_TABLES = (0xC4, 0xDB, 0xDD)
_SCAN, _INTERVAL = 0xDA, 0xDD
_PROGRESSIVE, _SEQUENTIAL = (0xC2, 0xCA), (0xC0, 0xC1, 0xC9)
_ARITHMETIC = 0xC9
"""From here on frames are coded arithmetically: FFmpeg does not read them, and their coder may leave out zeros at the end of the data."""
_SCAN_END = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]", re.DOTALL)
"""With the bytes 0xFF that may fill up the room before a marker."""
_RESTART = re.compile(rb"\xff+([\xd0-\xd7])", re.DOTALL)
_SMALL = 1 << 16
"""Pixels up to which `_check_padded` is asked as well: FFmpeg does not look whether data were left for the last unit of a scan, at most
16 x 16 pixels at the corner, which is much of a small picture."""
_PADS = (bytes((97 * i + 31) % 251 for i in range(64)), bytes((53 * i + 170) % 247 for i in range(64)))
"""Bytes without 0xFF that stand for no picture in particular."""


@dataclass
class _Scan:
    components: bytes
    first: int
    """Of the coefficients in zigzag order; with `last` inclusive."""
    last: int
    low_bit: int
    interval: int
    start: int
    """Of the coded data in the file."""
    end: int


@dataclass
class _Structure:
    kind: int = 0
    """Marker of the frame: 0xC0 for baseline, 0xC2 for progressive, ..."""
    width: int = 0
    height: int = 0
    sampling: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Component -> (horizontal, vertical)."""
    scans: list[_Scan] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    """Segments that decoding needs, in order."""


def check_whole(data: bytes) -> None:
    """Check that a JPEG that Pillow can read holds all of its picture. What follows its end marker does not count.

    Raises:
        MediaError: `truncated` or `corrupt`.
    """
    with border("image"):
        jpeg = _structure(data)
        _check_scans(jpeg)
        for scan in jpeg.scans:
            _check_restarts(jpeg, scan, data)
    if jpeg.kind < _ARITHMETIC:
        known = _decodes(b"".join([_SOI, *jpeg.pieces, _EOI]))
        # three more decodings, only where FFmpeg cannot read the file or does not look at its last unit
        if not known or jpeg.width * jpeg.height <= _SMALL:
            _check_padded(jpeg, data)


def _structure(data: bytes) -> _Structure:
    """The segments up to the end marker of the first picture, without metadata."""
    out = _Structure()
    position, interval = len(_SOI), 0
    while (position := data.find(b"\xff", position)) >= 0 and position + 1 < len(data):
        code = data[position + 1]
        if code == _EOI[1]:
            break
        if code in (0xFF, 0x00, 0x01, _SOI[1]) or 0xD0 <= code <= 0xD7:  # filling or strays, which decoders step over
            position += 1 if code == 0xFF else 2
            continue
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        body, start = data[position + 4 : position + 2 + length], position
        position += 2 + length
        if length < 2 or position > len(data):
            raise MediaError("corrupt", f"image: the JPEG segment at byte {start} does not fit")
        if code in _FRAMES:
            _, out.height, out.width, count = struct.unpack_from(">BHHB", body)
            out.kind = code
            out.sampling = {body[6 + 3 * i]: (body[7 + 3 * i] >> 4, body[7 + 3 * i] & 15) for i in range(count)}
        elif code == _INTERVAL:
            interval = int.from_bytes(body[:2], "big")
        elif code == _SCAN:
            count = body[0]
            first, last, bits = body[1 + 2 * count : 4 + 2 * count]
            found = _SCAN_END.search(data, position)
            end = len(data) if found is None else found.start()
            out.scans.append(_Scan(body[1 : 1 + 2 * count : 2], first, last, bits & 15, interval, position, end))
            position = end
        if code in _FRAMES or code in _TABLES or code == _SCAN:
            out.pieces.append(data[start:position])
    return out


def _check_scans(jpeg: _Structure) -> None:
    """Whether there are scans for all that the frame announces.

    The standard lets a progressive file leave out scans, and none is written so: it was cut, and would be shown blurred."""
    if jpeg.kind in _SEQUENTIAL:
        missing = set(jpeg.sampling) - {component for scan in jpeg.scans for component in scan.components}
    elif jpeg.kind in _PROGRESSIVE:
        # lowest bit sent so far of each of the 64 coefficients: 1 until a scan sends it, and complete at 0 (successive approximation)
        low_bits = {component: [1] * 64 for component in jpeg.sampling}
        for scan in jpeg.scans:
            for component in scan.components:
                low_bits[component][scan.first : scan.last + 1] = [scan.low_bit] * (scan.last + 1 - scan.first)
        missing = {component for component, bits in low_bits.items() if any(bits)}
    else:
        return
    if missing:
        raise MediaError("truncated", f"image: the JPEG ends before its last scans ({len(missing)} of its components are not complete)")


def _check_restarts(jpeg: _Structure, scan: _Scan, data: bytes) -> None:
    """Whether the restart markers of a scan count 0, 1, ... 7, 0, ... to where its size says. One more at its end does no harm."""
    if not scan.interval:
        return
    # a marker between every `interval` units, none behind the last
    expected = (_units(jpeg, scan) - 1) // scan.interval
    found = [match[1][0] & 7 for match in _RESTART.finditer(data, scan.start, scan.end)]
    if len(found) not in (expected, expected + 1) or found != [i % 8 for i in range(len(found))]:
        raise MediaError("corrupt", f"image: the JPEG has {len(found)} restart markers where there must be {expected}, or in another order")


def _units(jpeg: _Structure, scan: _Scan) -> int:
    """Units (MCU) that a scan codes: blocks of its only component, or groups of blocks of several."""
    wide, high = (max(sampling[axis] for sampling in jpeg.sampling.values()) for axis in (0, 1))
    # -(-a // b) is a / b rounded up: units at the right and lower edge are padded
    if len(scan.components) > 1:
        return -(-jpeg.width // (8 * wide)) * -(-jpeg.height // (8 * high))
    across, down = jpeg.sampling[scan.components[0]]
    return -(-jpeg.width * across // (8 * wide)) * -(-jpeg.height * down // (8 * high))


def _decodes(picture: bytes) -> bool:
    """Whether FFmpeg decodes it without complaint; False where it has not learned this kind of JPEG.

    Raises:
        MediaError: `corrupt`, data are missing or damaged.
    """
    import av
    from av.codec import CodecContext
    from av.error import FFmpegError, InvalidDataError

    context = CodecContext.create("mjpeg", "r")
    context.options = {"err_detect": "explode"}
    context.thread_count = 1
    try:
        # decode(None) flushes: the decoder may hold the picture back until it knows that nothing follows
        return bool(context.decode(av.Packet(picture)) or context.decode(None))
    except InvalidDataError as error:
        raise MediaError(
            "corrupt", "image: the JPEG's data end before its picture does, or are damaged; what is missing would be shown grey"
        ) from error
    except FFmpegError:
        return False


def _check_padded(jpeg: _Structure, data: bytes) -> None:
    """By libjpeg alone, which also reads rare samplings: it steps over bytes that follow complete data, and takes them for pixels where
    data are missing. So a complete picture is the same with any bytes put in there."""
    plain = _pixels(data)
    for pad in _PADS:
        out, position = [], 0
        for scan in jpeg.scans:
            stops = [match.start() for match in _RESTART.finditer(data, scan.start, scan.end)] if scan.interval else []
            for stop in [*stops, scan.end]:
                out += [data[position:stop], pad]
                position = stop
        if _pixels(b"".join([*out, data[position:]])) != plain:
            raise MediaError("truncated", "image: the JPEG's data end before its picture does; what is missing would be shown grey")


def _pixels(data: bytes) -> bytes:
    with border("image"):
        return Image.open(io.BytesIO(data), formats=("JPEG",)).tobytes()
