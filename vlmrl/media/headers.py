"""Reads sizes from headers alone: how large a medium is, how long, and how many tokens it becomes.

The numbers are those that decoding finds later, by the same rules (`media.sizing`), for files that are what their headers say. Where a
header cannot answer (the orientation of a PNG in its metadata text, Motion JPEG), the least necessary is decoded.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from vlmrl.media.access import IMAGE_BYTES, read_all
from vlmrl.media.border import border
from vlmrl.media.image import PNG, check_size, open_image, require_strict_pillow
from vlmrl.media.sizing import Grid, Sizing
from vlmrl.registry import Catalogue
from vlmrl.types import MediaKind

_PNG_MAY_ROTATE = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")
_TURNED = (5, 6, 7, 8)
_ORIENTATION = 0x0112
_CHUNK_BYTES = 1 << 20


class Planned(NamedTuple):
    """What a medium becomes."""

    grid: Grid
    """Patches in time, height, width, before spatial merging."""
    tokens: int
    spacing: float | None
    """Videos: seconds between two frames asked for."""
    times: np.ndarray | None
    """Videos, where asked for: float64 [T], when the chosen frames come on screen."""
    duration: float | None
    """Videos: seconds; of one given as pictures, until the last one leaves the screen."""


def plan_medium(file: BinaryIO, kind: MediaKind, sizing: Sizing, *, name: str = "medium", times: bool = False) -> Planned:
    """Compute grid and tokens of an open file. `times` also looks up when the frames of a video are shown.

    Raises:
        MediaError: as decoding it would, as far as its headers show.
    """
    if kind == "image":
        height, width = sizing.target(*read_image_size(file, name), frames=1)
        return planned((1, height // sizing.patch_size, width // sizing.patch_size), sizing, None, None, None)
    return PLANS[kind](file, sizing, times)


def planned(grid: Grid, sizing: Sizing, spacing: float | None, times: np.ndarray | None, duration: float | None) -> Planned:
    return Planned(grid, grid[0] * grid[1] * grid[2] // sizing.merge_size**2, spacing, times, duration)


PLANS: Catalogue[Callable[[BinaryIO, Sizing, bool], Planned]] = Catalogue(
    "kind of medium", elsewhere={"video": "vlmrl.media.video:plan_video"}
)
"""Of media that are no pictures: (open file, rules, whether to look up times) -> what it becomes."""


def read_image_size(file: BinaryIO, name: str = "image") -> tuple[int, int]:
    """Read the size after EXIF orientation, and no more of the file than that takes.

    Returns:
        (H, W) in pixels.

    Raises:
        MediaError: as `image_size`.
    """
    file.seek(0)
    head = file.read(32)
    # None of the three below: the format, or what may stand elsewhere in the file, needs the whole of it
    size = None
    if head.startswith(PNG):
        size = _png(file)
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        size = _webp(file)
    elif head[:2] == b"\xff\xd8":
        size = _jpeg(file)
    if size is not None:
        return size
    file.seek(0)
    return image_size(read_all(file, name, max_bytes=IMAGE_BYTES))


def image_size(data: bytes) -> tuple[int, int]:
    """Read the size after EXIF orientation, without decoding pixels (except for PNG files that may carry an orientation at their end).

    Returns:
        (H, W) in pixels.

    Raises:
        MediaError: as `image.decode_image`, as far as the header shows it.
    """
    image = open_image(data)
    width, height = image.size
    if data.startswith(PNG) and not any(tag in data for tag in _PNG_MAY_ROTATE):
        return height, width
    require_strict_pillow()
    with border("image"):
        turned = image.getexif().get(_ORIENTATION, 1) in _TURNED
    return (width, height) if turned else (height, width)


def _jpeg(file: BinaryIO) -> tuple[int, int] | None:
    """Pillow reads a JPEG's markers up to its pixels when it opens it."""
    file.seek(0)
    with border("image"):
        try:
            image = Image.open(file, formats=("JPEG",))
            width, height = image.size
            turned = image.getexif().get(_ORIENTATION, 1) in _TURNED
        except (UnidentifiedImageError, Image.DecompressionBombError, Image.DecompressionBombWarning):
            return None  # the careful way has the words for it
    check_size(width, height)
    return (width, height) if turned else (height, width)


def _png(file: BinaryIO) -> tuple[int, int] | None:
    """From the chunk headers. None where metadata texts could hold an orientation, or the chunks are not in order."""
    file.seek(8)
    size: tuple[int, int] | None = None
    turned = False
    while True:
        head = file.read(8)
        if len(head) < 8:
            return None
        length, kind = struct.unpack(">I4s", head)
        # IHDR comes first and once; an orientation may also hide in texts (XMP, ImageMagick's raw profiles)
        if (size is None) != (kind == b"IHDR") or kind in (b"tEXt", b"zTXt", b"iTXt"):
            return None
        if kind == b"IHDR":
            width, height = struct.unpack(">II", file.read(8))
            check_size(width, height)
            size, length = (height, width), length - 8
        elif kind == b"eXIf":
            if length > _CHUNK_BYTES:
                return None
            turned, length = _turned(file.read(length)), 0
        elif kind == b"IEND":
            return (size[1], size[0]) if size is not None and turned else size
        # 4: the chunk's checksum
        file.seek(length + 4, io.SEEK_CUR)


def _webp(file: BinaryIO) -> tuple[int, int] | None:
    """From the chunk headers. None where XMP could hold an orientation, or the chunks are not in order."""
    end = file.seek(0, io.SEEK_END)
    file.seek(12)
    size: tuple[int, int] | None = None
    turned = False
    while (position := file.tell()) + 8 <= end:
        kind, length = struct.unpack("<4sI", file.read(8))
        if kind == b"XMP " or position + 8 + length > end:
            return None
        if size is None:
            size = _webp_size(kind, file.read(min(length, 16)))
            if size is None:
                return None
            check_size(size[1], size[0])
            if kind != b"VP8X":
                return size
        elif kind == b"EXIF":
            file.seek(position + 8)
            turned = _turned(file.read(min(length, _CHUNK_BYTES)))
        # RIFF chunks begin at even positions
        file.seek(position + 8 + length + length % 2)
    return (size[1], size[0]) if size is not None and turned else size


def _webp_size(kind: bytes, data: bytes) -> tuple[int, int] | None:
    """(H, W) of a chunk's first bytes (RFC 9649, sections 2.5 to 2.7)."""
    if kind == b"VP8X" and len(data) >= 10:
        return 1 + int.from_bytes(data[7:10], "little"), 1 + int.from_bytes(data[4:7], "little")
    if kind == b"VP8L" and len(data) >= 5 and data[0] == 0x2F:
        bits = struct.unpack_from("<I", data, 1)[0]
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8 " and len(data) >= 10 and data[3:6] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 6)
        return height & 0x3FFF, width & 0x3FFF
    return None


def _turned(block: bytes) -> bool:
    """Whether an EXIF block swaps width and height."""
    with border("image"):
        exif = Image.Exif()
        exif.load(block if block.startswith(b"Exif\0\0") else b"Exif\0\0" + block)
        return exif.get(_ORIENTATION, 1) in _TURNED
