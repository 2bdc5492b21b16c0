"""Makes frames upright as the file's display matrix says; tells whether a packet could turn its pictures too (an SEI message), so that
headers alone may be believed.

A display matrix (a, b, c, d) puts the stored pixel (x, y) at (a x + c y, b x + d y). The eight that turn and mirror are applied, as
`ffmpeg` does by itself (`-autorotate`: hflip, vflip, transpose) and players do. Scales are left out, as `ffmpeg` leaves them out: the
model sees the stored pixels. Other angles and shears, for which `ffmpeg` turns the picture within a larger black one, are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vlmrl.errors import MediaError

MIRRORED = 4
"""An orientation is the quarter turns, counter-clockwise (as `numpy.rot90`), that make a stored frame upright; plus this if it has to be
mirrored, left for right, before."""
_ORIENTATIONS = {
    ((1, 0), (0, 1)): 0,
    ((0, -1), (1, 0)): 1,
    ((-1, 0), (0, -1)): 2,
    ((0, 1), (-1, 0)): 3,
    ((-1, 0), (0, 1)): MIRRORED,
    ((0, 1), (1, 0)): MIRRORED + 1,
    ((1, 0), (0, -1)): MIRRORED + 2,
    ((0, -1), (-1, 0)): MIRRORED + 3,
}
"""Signs of ((a, b), (c, d)) of a display matrix -> orientation."""
_STRAIGHT = math.tan(math.radians(1))
"""A matrix that is off by less than a degree counts as straight, as for `ffmpeg`."""

_SILENT = ("vp8", "vp9", "av1", "mpeg4", "mpeg1video", "mpeg2video")
"""Codecs whose bit streams cannot say how a picture is to be turned (Motion JPEG can, by EXIF)."""
_ORIENTATION = 47
"""Display orientation: payload type of a supplemental enhancement message (H.264 D.1.27, H.265 D.2.17)."""
_NAL_SEI = {"h264": (6,), "hevc": (39, 40)}


def orientation_of(a: float, b: float, c: float, d: float) -> int:
    """Find the orientation that a display matrix asks for, in any unit. One that maps the picture to a line or a point says nothing (0).

    Returns:
        Quarter turns counter-clockwise, 0 to 3, plus `MIRRORED`: what `upright` takes.

    Raises:
        MediaError: `format`: it turns by something else than quarters, or shears.
    """
    if math.hypot(a, c) == 0 or math.hypot(b, d) == 0:
        return 0
    rows = []
    for one, other in ((a, b), (c, d)):
        largest = max(abs(one), abs(other))
        rows.append(tuple(0 if abs(value) <= _STRAIGHT * largest else round(math.copysign(1, value)) for value in (one, other)))
    orientation = _ORIENTATIONS.get((rows[0], rows[1]))
    if orientation is None:
        matrix = f"({a:g}, {b:g}, {c:g}, {d:g})"
        raise MediaError(
            "format", f"video: its display matrix {matrix} turns by other than quarters, or shears; encode it upright ahead of time"
        )
    return orientation


def upright(frame: np.ndarray, orientation: int) -> np.ndarray:
    """Turn a stored frame [H, W, C] to what players show; a view."""
    return np.rot90(frame[:, ::-1] if orientation >= MIRRORED else frame, orientation % 4)


def says_nothing_of_rotation(codec: str, extra: bytes, packet: bytes) -> bool:
    """Check that neither the codec's configuration `extra` nor the first `packet` carries an orientation. False where it cannot be told."""
    if codec in _SILENT:
        return True
    if codec not in _NAL_SEI:
        return False
    if codec == "hevc" and _mentions_sei(extra):
        return False
    # with an avcC or hvcC record (it begins with 1) units follow their length, whose width the record says; else annex B start codes
    units = _units_by_length(packet, 1 + (extra[4 if codec == "h264" else 21] & 3)) if extra[:1] == b"\x01" else _units_by_mark(packet)
    for unit in units:
        if unit is None or len(unit) < 2:
            return False
        # unit headers: 1 byte with a type of 5 bits in H.264, 2 bytes with a type of 6 bits in H.265
        kind = unit[0] & 31 if codec == "h264" else unit[0] >> 1 & 63
        if kind in _NAL_SEI[codec] and _ORIENTATION in _payloads(unit[1 if codec == "h264" else 2 :]):
            return False
    return True


def _mentions_sei(extra: bytes) -> bool:
    """Whether an HEVC configuration lists arrays of enhancement messages (it rarely does)."""
    if extra[:1] != b"\x01" or len(extra) < 23:
        return bool(extra)
    position = 23
    for _ in range(extra[22]):
        if position + 3 > len(extra) or extra[position] & 63 in _NAL_SEI["hevc"]:
            return True
        count = int.from_bytes(extra[position + 1 : position + 3], "big")
        position += 3
        for _ in range(count):
            position += 2 + int.from_bytes(extra[position : position + 2], "big")
    return False


def _units_by_length(packet: bytes, width: int) -> Iterator[bytes | None]:
    """Units that follow their length of `width` bytes; None for one that does not fit."""
    position = 0
    while position < len(packet):
        length = int.from_bytes(packet[position : position + width], "big")
        position += width
        yield packet[position : position + length] if position + length <= len(packet) else None
        position += length


def _units_by_mark(packet: bytes) -> Iterator[bytes | None]:
    """Units between start codes (H.264 annex B)."""
    pieces = packet.split(b"\0\0\1")
    if len(pieces) < 2 or pieces[0].strip(b"\0"):
        yield None
    for piece in pieces[1:]:
        yield piece.rstrip(b"\0")


def _payloads(message: bytes) -> Iterator[int]:
    """Payload types of an enhancement message, up to where it ends or cannot be read."""
    # emulation prevention: a 3 is put behind two zeros, so that no start code occurs in the data
    message = message.replace(b"\0\0\3", b"\0\0")
    position = 0
    # type and length are each a run of 255 and a last byte; a lone 0x80 is the stop bit with its padding
    while position + 2 <= len(message) and not (position == len(message) - 1 and message[position] == 0x80):
        kind = length = 0
        while position < len(message) and message[position] == 255:
            kind, position = kind + 255, position + 1
        kind, position = kind + (message[position] if position < len(message) else 0), position + 1
        while position < len(message) and message[position] == 255:
            length, position = length + 255, position + 1
        length, position = length + (message[position] if position < len(message) else 0), position + 1
        yield kind
        position += length
