"""Small stand-in pictures and clips for tests of dataset preparation: made from their names, so equal on every run."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.media import make_video

SIZE = (64, 48)
"""(width, height) where a row states none."""
LONGEST = 60
"""Seconds of the longest clip that is made; it has one frame a second."""


def picture(name: str, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Coloured blocks that follow from `name`: uint8 RGB [height, width, 3]."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    blocks = np.random.Generator(np.random.Philox(seed)).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    width, height = size
    return blocks[np.arange(height) * 3 // height][:, np.arange(width) * 4 // width]


def image_bytes(name: str, size: tuple[int, int] = SIZE) -> bytes:
    """An encoded picture; the suffix of `name` says whether PNG or JPEG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture(name, size)).save(buffer, format="PNG" if name.lower().endswith(".png") else "JPEG")
    return buffer.getvalue()


def make_medium(root: Path, path: str, kind: str, meta: Mapping[str, Any]) -> None:
    """Write `root/path`: a picture of `meta["size"]` (width, height), or a clip of `meta["duration"]` seconds."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == "image":
        width, height = meta.get("size", SIZE)
        target.write_bytes(image_bytes(path, (width, height)))
    else:
        count = min(LONGEST, max(2, round(meta.get("duration", 4))))
        make_video(target, np.stack([picture(f"{path}#{i}") for i in range(count)]), fps=1)


def fill(root: Path, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Make every medium that rows name and that is not below `root`; the paths made."""
    made: list[str] = []
    for row in rows:
        for key, kind in (("image", "image"), ("images", "image"), ("video", "video"), ("videos", "video")):
            given = row.get(key)
            for path in given if isinstance(given, list) else [given]:
                if isinstance(path, str) and not (root / path).exists():
                    make_medium(root, path, kind, row.get("meta", {}))
                    made.append(path)
    return made
