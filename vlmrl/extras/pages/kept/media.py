"""Media of kept groups by their keys: the pixels that the model saw as JPEG, one ZIP file per medium.

`<key>.zip` holds `info.json` and the frames `0000.jpg`, `0001.jpg`, ... A medium has one file, whatever the number of groups that show it.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.errors import StorageError
from vlmrl.media.store import ProcessedMedia

QUALITY, SMALL_QUALITY, SMALL = 88, 95, 1 << 17
"""Of JPEG; small pictures (pixels) are seen enlarged, so they are kept better."""
KEY = re.compile(r"[0-9a-f]{8,128}")
"""What a key looks like (`MediaStore`): nothing else becomes part of a path."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every entry, so that the same pixels give the same bytes."""


def chosen(count: int, most: int) -> list[int]:
    """At most `most` of `count` frames, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [0]
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def encoded(media: ProcessedMedia, most: int) -> bytes:
    """The file of a medium, with at most `most` frames."""
    from PIL import Image

    kept = chosen(len(media.frames), most)
    quality = SMALL_QUALITY if media.frames.shape[1] * media.frames.shape[2] <= SMALL else QUALITY
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
            Image.fromarray(media.frames[index]).convert("RGB").save(picture, format="JPEG", quality=quality, subsampling=0)
            archive.writestr(zipfile.ZipInfo(f"{number:04d}.jpg", _EPOCH), picture.getvalue())
    return out.getvalue()


def path_of(folder: Path, key: str) -> Path:
    """File of a medium.

    Raises:
        StorageError: that is no key.
    """
    if not KEY.fullmatch(key):
        raise StorageError(f"{key!r:.80} is no key of a medium")
    return folder / f"{key}.zip"


def write(folder: Path, key: str, data: bytes) -> None:
    """Write the file of a medium.

    Raises:
        StorageError: the disk refused.
    """
    fs.write_bytes(path_of(folder, key), data)


def info(path: Path) -> dict[str, Any]:
    """What is said of the frames: `kind`, `total` frames that the model saw, `indices` and `times` of those kept, `size` and `original`
    as [height, width], `duration`.

    Raises:
        StorageError: the file is missing or damaged.
    """
    return json.loads(_member(path, "info.json"))


def frame(path: Path, number: int) -> bytes:
    """A kept frame as JPEG, counted from 0.

    Raises:
        StorageError: it is not there.
    """
    return _member(path, f"{number:04d}.jpg")


def _member(path: Path, name: str) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)
    except (OSError, KeyError, zipfile.BadZipFile, ValueError) as error:
        raise StorageError(f"{path}: no {name} in it: {error}") from error
