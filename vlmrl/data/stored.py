"""Writes pictures and videos that stand in rows to files, each once, under the hash of its content."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.data.embedded import content_of, is_embedded
from vlmrl.errors import MediaError, RowError
from vlmrl.media.access import IMAGE_BYTES, VIDEO_BYTES, check_path

_VIDEO_SUFFIX = {"mp4": ".mp4", "matroska": ".mkv", "avi": ".avi", "mpegts": ".ts"}


def stored(value: Any, *, root: Path | None, folder: str | None, place: str = "") -> Any:
    """Write media that a row holds as bytes to files, below `root` unless they are there already.

    Returns:
        The row with each `{"bytes": ..., "path": ...}`, and each text that is the content of a file (`data.embedded`), replaced by
        `{"path": "<folder>/<hash>.<kind>", "sha256": ...}`. Bytes elsewhere are left alone, for the schema to refuse.

    Raises:
        RowError: `image_bytes` (the source names no folder), `base64`, `format`, `too_large`, or `forbidden` (of the folder).
        StorageError: it cannot be written.
    """
    if isinstance(value, str) and is_embedded(value):
        if root is None or folder is None:
            raise RowError("image_bytes", f"'{place}' holds base64; set 'media_folder' of the source to the folder to write it to")
        return _store(content_of(value, place), root, folder, place)
    if isinstance(value, dict):
        data = value.get("bytes")
        # the form of `datasets`' Image and Video columns; the path in it names a file of whoever made the data set, and is not used
        if (isinstance(data, bytes) or (isinstance(data, str) and is_embedded(data))) and set(value) <= {"bytes", "path"}:
            if root is None or folder is None:
                raise RowError("image_bytes", f"'{place}' holds bytes; set 'media_folder' of the source to the folder to write them to")
            return _store(content_of(data, place) if isinstance(data, str) else data, root, folder, place)
        if isinstance(path := value.get("path"), str) and is_embedded(path):
            return {**value, **stored(path, root=root, folder=folder, place=f"{place}.path".lstrip("."))}
        return {key: stored(inner, root=root, folder=folder, place=f"{place}.{key}".lstrip(".")) for key, inner in value.items()}
    if isinstance(value, list):
        return [stored(inner, root=root, folder=folder, place=f"{place}[{i}]") for i, inner in enumerate(value)]
    return value


def _store(data: bytes, root: Path, folder: str, place: str) -> dict[str, str]:
    digest = hashlib.sha256(data).hexdigest()
    name = f"{folder}/{digest[:2]}/{digest}{_suffix(data, place)}"
    try:
        check_path(name)
    except MediaError as error:
        raise RowError(error.reason, f"'{place}': {str(error).removeprefix(error.reason + ': ')}") from error
    target = root / name
    # the name is the hash: a file of this length holds these bytes, one of another was cut while it was written
    if fs.length(target) != len(data):
        fs.mkdir(target.parent)
        fs.write_bytes(target, data)
    return {"path": name, "sha256": digest}


def _suffix(data: bytes, place: str) -> str:
    """File suffix of the kinds of media that are read, from their first bytes."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        kind, limit = ".png", IMAGE_BYTES
    elif data.startswith(b"\xff\xd8\xff"):
        kind, limit = ".jpg", IMAGE_BYTES
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind, limit = ".webp", IMAGE_BYTES
    else:
        from vlmrl.media.container import sniff  # loads the video library

        try:
            kind, limit = _VIDEO_SUFFIX.get(sniff(data[:600]), ".video"), VIDEO_BYTES
        except MediaError as error:
            raise RowError("format", f"'{place}' is neither a JPEG, PNG or WebP picture nor a video that can be read") from error
    if len(data) > limit:
        raise RowError("too_large", f"'{place}': {len(data)} bytes, the limit is {limit}")
    return kind
