"""Media by their keys: the pixels that the model saw, one ZIP file per medium, of kept groups and of held-out questions.

`<key>.zip` holds `info.json` and the frames `0000.jpg`, `0001.jpg`, ... (`.png` where they were kept without loss). A medium has one file,
whatever the number of groups that show it.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from vlmrl.errors import StorageError
from vlmrl.media.store import ProcessedMedia

QUALITY, SMALL_QUALITY, SMALL = 88, 95, 1 << 17
"""Of JPEG; small pictures (pixels) are seen enlarged, so they are kept better."""
KEY = re.compile(r"[0-9a-f]{8,128}")
"""What a key looks like (`MediaStore`): nothing else becomes part of a path."""
MOST_PIXELS = 1_500_000
"""Of a medium that is kept without loss. Longer videos keep evenly spaced frames, at the size at which the model saw them."""
TYPES = {"jpg": "image/jpeg", "png": "image/png"}
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every entry, so that the same pixels give the same bytes."""


def chosen(count: int, most: int) -> list[int]:
    """At most `most` of `count` frames, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [0]
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def encoded(media: ProcessedMedia, most: int, *, lossless: bool = False) -> bytes:
    """The file of a medium, with at most `most` frames, as JPEG or without loss as PNG."""
    from PIL import Image

    kept = chosen(len(media.frames), most)
    quality = SMALL_QUALITY if media.frames.shape[1] * media.frames.shape[2] <= SMALL else QUALITY
    form: dict[str, Any] = {"format": "PNG"} if lossless else {"format": "JPEG", "quality": quality, "subsampling": 0}
    info = {
        "kind": media.handle.kind,
        "total": len(media.frames),
        "indices": kept,
        "times": None if media.times is None else [float(media.times[i]) for i in kept],
        "size": [int(side) for side in media.frames.shape[1:3]],
        "original": [int(side) for side in media.original_size],
        "duration": None if media.duration is None else float(media.duration),
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("info.json", _EPOCH), json.dumps(info, sort_keys=True))
        for number, index in enumerate(kept):
            picture = io.BytesIO()
            Image.fromarray(media.frames[index]).convert("RGB").save(picture, **form)
            archive.writestr(zipfile.ZipInfo(f"{number:04d}.{'png' if lossless else 'jpg'}", _EPOCH), picture.getvalue())
    return out.getvalue()


def most_frames(media: ProcessedMedia) -> int:
    """How many frames of a medium are kept without loss."""
    _, height, width, _ = media.frames.shape
    return max(2, MOST_PIXELS // (height * width))


def path_of(folder: Path, key: str) -> Path:
    """File of a medium; StorageError, where that is no key."""
    if not KEY.fullmatch(key):
        raise StorageError(f"{key!r:.80} is no key of a medium")
    return folder / f"{key}.zip"


class Medium:
    """What the file of a medium holds; StorageError, where it is missing or damaged. `file`: its path, or the file itself."""

    def __init__(self, file: Path | IO[bytes]):
        self.file = file
        try:
            with zipfile.ZipFile(file) as archive:
                self.info: dict[str, Any] = json.loads(archive.read("info.json"))
                self.frames = sorted((one for one in archive.infolist() if one.filename[:4].isdigit()), key=lambda one: one.filename)
        except (OSError, KeyError, zipfile.BadZipFile, ValueError) as error:
            raise StorageError(f"{file}: not a kept medium: {error}") from error
        """`info`: `kind`, `total` frames that the model saw, `indices` and `times` of those kept, `size` and `original` as [height, width],
        `duration`."""

    def alike(self) -> list[int]:
        """Of each frame the number of the first that is equal to it."""
        first: dict[tuple[int, int], int] = {}
        return [first.setdefault((one.CRC, one.file_size), number) for number, one in enumerate(self.frames)]

    def suffix(self, number: int) -> str:
        """How the file of a frame ends: `jpg` or `png`; StorageError, where the frame was not kept."""
        if not 0 <= number < len(self.frames):
            raise StorageError(f"{self.file}: frame {number} was not kept")
        return self.frames[number].filename[-3:]

    def frame(self, number: int) -> tuple[bytes, str]:
        """A kept frame, counted from 0, as the bytes of a picture file, and its media type; StorageError, where it is not there."""
        kind = TYPES[self.suffix(number)]
        try:
            with zipfile.ZipFile(self.file) as archive:
                return archive.read(self.frames[number]), kind
        except (OSError, zipfile.BadZipFile) as error:
            raise StorageError(f"{self.file}: frame {number}: {error}") from error


opened = lru_cache(4096)(Medium)
"""The medium of a path, read once: what a key names does not change."""
