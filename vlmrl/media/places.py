"""Files of media as the store knows them: by their place while they are unchanged, by the hash of their content once they are read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vlmrl.errors import MediaError
from vlmrl.media.access import IMAGE_BYTES, VIDEO_BYTES, check_path, open_media, read_all
from vlmrl.media.decode import Stored
from vlmrl.types import MediaKind, MediaRef

Place = Hashable
"""Path, size and time of modification, of a video given as frames those of each: while these are the same, so is the content."""


@contextmanager
def named(ref: MediaRef) -> Iterator[None]:
    """Put the path in front of the message of a `MediaError` that rises from the block."""
    try:
        yield
    except MediaError as error:
        raise MediaError(error.reason, f"{ref.path}: {str(error).removeprefix(error.reason + ': ')}") from error


def byte_limit(kind: MediaKind) -> int:
    return IMAGE_BYTES if kind == "image" else VIDEO_BYTES


def check_hash(ref: MediaRef, digest: str) -> None:
    if ref.sha256 is not None and ref.sha256.lower() != digest:
        raise MediaError("hash_mismatch", f"{ref.path}: content has sha256 {digest}, the row expects {ref.sha256}")


def seen_place(ref: MediaRef, root: Path) -> Place | None:
    """Find the place of a file that need not be opened again, should its content be known; None where opening it tells what is wrong."""
    check_path(ref.path)
    if ref.as_frames:
        from vlmrl.media.frames import seen_places

        places = seen_places(ref, root)
        return None if places is None else _place_of_frames(ref, places)
    path = os.path.join(root, ref.path)
    try:
        status = os.stat(path)
    except OSError:
        return None
    return path, status.st_size, status.st_mtime_ns


def _place_of_frames(ref: MediaRef, places: tuple[tuple[str, int, int], ...]) -> Place:
    """With what the row expects of the frames, which is compared when they are read."""
    return ref.times, ref.fps, tuple(frame.sha256 for frame in ref.frames), places


def stored_as(ref: MediaRef) -> Stored:
    return "frames" if ref.as_frames else ref.kind


def content_of(ref: MediaRef, root: Path) -> tuple[bytes, str, Place]:
    """Read a medium's file or files.

    Returns:
        (what is decoded, its SHA-256 in hexadecimal, the place of what was read).
    """
    if ref.as_frames:
        from vlmrl.media.frames import read_bundle

        bundle = read_bundle(ref, root)
        return bundle.data, bundle.digest, _place_of_frames(ref, bundle.places)
    with open_media(root, ref.path, max_bytes=byte_limit(ref.kind)) as file:
        # of the open file: the place must be that of the bytes that are hashed, even if the path is replaced meanwhile
        status = os.fstat(file.fileno())
        data = read_all(file, ref.path, max_bytes=byte_limit(ref.kind))
    return data, hashlib.sha256(data).hexdigest(), (os.path.join(root, ref.path), status.st_size, status.st_mtime_ns)
