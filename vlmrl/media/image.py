"""Decodes image files to upright RGB pixels, within bounds. JPEG, PNG and WebP only.

The pixels are those of the whole, undamaged file: a cut or broken one is an error, never a half-grey picture. Embedded colour
profiles are not applied, as the models' own processors do not apply them.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image, ImageFile, ImageOps

from vlmrl.errors import MediaError
from vlmrl.media.border import border

MAX_PIXELS = 40_000_000
"""Most pixels that an image may declare; checked before anything is decoded."""

_FORMATS = ("JPEG", "PNG", "WEBP")
PNG = b"\x89PNG\r\n\x1a\n"
"""How a PNG begins."""


def decode_image(data: bytes) -> np.ndarray:
    """Decode all pixels of the first frame, with EXIF orientation applied and transparency on white.

    Returns:
        uint8 [H, W, 3].

    Raises:
        MediaError: `format` (not a JPEG, PNG or WebP), `too_large`, `truncated` or `corrupt`.
    """
    require_strict_pillow()
    image = open_image(data)
    _check_png_sums(data)
    with border("image"):
        image.load()
    # MPO: a JPEG with more pictures behind it, as phones and stereo cameras write; the first one counts
    if image.format in ("JPEG", "MPO"):
        from vlmrl.media.jpeg import check_whole

        check_whole(data)
    with border("image"):
        upright = ImageOps.exif_transpose(image)
        pixels = rgb(image if upright is None else upright)
    return pixels


def _check_png_sums(data: bytes) -> None:
    """Checksums of a PNG's pixel chunks, which Pillow skips: damaged pixels would pass as a picture."""
    if not data.startswith(PNG):
        return
    view, position = memoryview(data), len(PNG)
    while position + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if end > len(data):
            return  # Pillow finds the end missing
        if kind in (b"IDAT", b"fdAT") and zlib.crc32(view[position + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise MediaError("corrupt", f"image: the checksum of the PNG chunk at byte {position} is wrong")
        position = end


def require_strict_pillow() -> None:
    """Check that Pillow refuses files that are cut short. Raises RuntimeError."""
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise RuntimeError(
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is switched on in this process (some libraries do that at import): "
            "half an image would pass as a whole one. Set it to False, or keep that library in another process"
        )


def open_image(data: bytes) -> Image.Image:
    """Open a picture of a size that is allowed, without decoding it.

    Raises:
        MediaError: as `decode_image`, as far as the header shows it.
    """
    if not data:
        raise MediaError("corrupt", "image: the file is empty")
    _check_declared_size(data)
    with border("image"):
        try:
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise MediaError("too_large", f"image: {error}") from error
        except Image.UnidentifiedImageError as error:
            raise MediaError("format", "image: the content is not a JPEG, PNG or WebP image, or its header is broken") from error
    check_size(*image.size)
    return image


def check_size(width: int, height: int) -> None:
    """Check a declared size before it is decoded. Raises MediaError (`corrupt`, `too_large`)."""
    if width < 1 or height < 1:
        raise MediaError("corrupt", f"image: declares {width}x{height} pixels")
    if width * height > MAX_PIXELS:
        raise MediaError("too_large", f"image: declares {width}x{height} pixels, the limit is {MAX_PIXELS}")


def _check_declared_size(data: bytes) -> None:
    """Check the size of PNG and WebP before Pillow opens them: it allocates a WebP's canvas, and warns about a PNG, when it opens them."""
    if data.startswith(PNG) and data[12:16] == b"IHDR" and len(data) >= 24:
        check_size(*struct.unpack(">II", data[16:24]))
    elif data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8X" and len(data) >= 30:
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
        check_size(width, height)
    elif data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8L" and len(data) >= 25:
        bits = struct.unpack("<I", data[21:25])[0]
        check_size((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)


def rgb(image: Image.Image) -> np.ndarray:
    """Any Pillow mode to uint8 [H, W, 3]."""
    # modes of more than 8 bits a channel; Pillow has them for grey alone
    if image.mode.startswith("I"):
        return _from_16_bit(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        # palette and grey pictures too; what lies under transparent pixels is arbitrary. White, as qwen-vl-utils' `to_rgb`
        above = image.convert("RGBA")
        white = Image.new("RGBA", above.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, above)
    return np.array(image.convert("RGB"), dtype=np.uint8)


def _from_16_bit(image: Image.Image) -> np.ndarray:
    """16-bit grey: the high byte, as Pillow takes of 16-bit colour; its own conversion would clip everything above 255 to white."""
    values = np.asarray(image).astype(np.int64)
    grey = np.clip(values >> 8, 0, 255).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        grey[values == clear] = 255
    return np.repeat(grey[:, :, None], 3, axis=2)
