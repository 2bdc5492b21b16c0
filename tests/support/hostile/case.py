"""One case of the hostile corpus, and the pictures that its files are made of."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vlmrl.types import MediaKind

DAMAGE = frozenset({"corrupt", "truncated", "format", "no_frames", "too_large"})
"""What damaged bytes may be called."""


@dataclass(frozen=True, kw_only=True)
class MediaCase:
    """One medium of the corpus."""

    group: str
    """Fault of the catalogue: M1, S3, ..."""
    kind: MediaKind
    path: str
    """As a row would give it."""
    reasons: frozenset[str] = frozenset()
    """Right reasons for leaving it out; empty: it has to be shown."""
    may_show: str | None = None
    """Path of an undamaged file of the same pictures: the case may also be shown, but only if it looks like that one."""
    weaker: str | None = None
    """Key of `WEAKER`, where the format cannot tell damaged pixels: what is promised instead of the same look."""


WEAKER = {
    "scan_data": "JPEG and WebP have no checksums: flipped bytes of the compressed pixels may decode to other pixels of a whole picture",
    "payload": "H.264 has no checksums: flipped bytes of a frame may decode, without an error of the decoder, to other pixels",
    "head": "an MPEG-TS or AVI file cut at a frame says nothing of the rest: what is there is a shorter video with the right first frames",
    "tail": "up to a tenth of a video may be missing at its end; what is asked for there is shown as the last frame that is left",
}
"""Promises about damaged files that are weaker than "looks like the undamaged one, or is refused"."""


def encode(pixels: np.ndarray | Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as a file of this Pillow format."""
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(height: int = 60, width: int = 84) -> np.ndarray:
    """A smooth picture, uint8 [height, width, 3], whose four corners differ."""
    y, x = np.mgrid[0:height, 0:width]
    channels = (255 * y / max(1, height - 1), 255 * x / max(1, width - 1), 255 * (x + y) / max(1, height + width - 2))
    return np.stack(channels, axis=-1).astype(np.uint8)


def write(root: Path, name: str, data: bytes) -> str:
    """Put a file below `root`; its name."""
    (root / name).write_bytes(data)
    return name
