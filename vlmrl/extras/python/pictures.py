"""Pictures that stand in rows as objects, with the pixels that the reader of files would give (`media.image`)."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from vlmrl.media.border import border
from vlmrl.media.image import check_size, rgb

PNG_LEVEL = 3
"""Of zlib: photographs take half the time of the usual level, for some percent more bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A picture or a video of a row."""

    digest: str
    """Of the pixels, or of the content of a file: it does not depend on the encoder that is installed."""
    place: str
    """Where in the row it stands."""
    content: Callable[[], bytes]
    """The bytes of a file that holds it."""


def of_bytes(data: bytes, place: str) -> Picture:
    """The content of a file of pictures or videos."""
    return Picture(digest=f"file {hashlib.sha256(data).hexdigest()}", place=place, content=lambda: data)


def of_object(value: Any, place: str) -> Picture | None:
    """A PIL image or an array as a picture; None for anything else.

    Raises:
        ValueError: an array of another form.
        MediaError: the picture cannot be decoded.
    """
    if isinstance(value, Image.Image):
        return _of_image(value, place)
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or not (value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (3, 4))):
            raise ValueError(
                f"an array of {value.dtype} {list(value.shape)} is no picture; one is uint8 [H, W], [H, W, 3] or [H, W, 4], and a video is "
                '{"frames": [picture, ...], "fps": 2}'
            )
        return _of_image(Image.fromarray(value), place)
    return None


def _of_image(image: Image.Image, place: str) -> Picture:
    with border("picture"):  # of a file that was opened and not yet read, too
        check_size(*image.size)
        upright = ImageOps.exif_transpose(image)
        pixels = rgb(image if upright is None else upright)
    digest = hashlib.sha256(f"{pixels.shape}".encode() + pixels.tobytes()).hexdigest()
    return Picture(digest=f"pixels {digest}", place=place, content=lambda: _png(pixels))


def _png(pixels: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, format="PNG", compress_level=PNG_LEVEL)
    return data.getvalue()
