"""Checks what a media reference may name. A string that names media is not permission to read it.

A path is relative to a root, normalised, and stays under that root after symbolic links are resolved; only regular files
are opened, and only up to a size cap. Nothing here knows what an image or a video is.
"""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import re
import stat
import unicodedata
from pathlib import Path
from typing import BinaryIO

from vlmrl.errors import MediaError

IMAGE_BYTES = 30_000_000
"""Largest image file that is read."""
VIDEO_BYTES = 500_000_000
"""Largest video file that is read."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
"""Names of pictures end so, where a name has to tell: in folders of frames, and in lists."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")


def check_path(path: str) -> None:
    """Check that `path` has a form that may be opened at all; looks at the text only.

    Raises:
        MediaError: `forbidden`, for URLs, absolute paths, `..`, backslashes, NUL, names that are not normalised or too long.
    """
    problem = _path_problem(path)
    if problem:
        shown = path if len(path) <= 100 else path[:100] + "..."
        raise MediaError("forbidden", f"media path {shown!r} {problem}; give a path relative to the media root, like 'clips/a.mp4'")


def _path_problem(path: str) -> str | None:
    if not path:
        return "is empty"
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        return "contains a control character"
    if _SCHEME.match(path):
        return "is a URL or names a drive; nothing is downloaded, download it ahead of time"
    if path.startswith("/"):
        return "is absolute"
    if "\\" in path:
        return "contains a backslash"
    parts = path.split("/")
    if ".." in parts:
        return "contains '..'"
    if posixpath.normpath(path) != path or path == ".":
        return f"is not normalised (write {posixpath.normpath(path)!r})"
    # two spellings of one name would be two files here and one on a file system that normalises names
    if unicodedata.normalize("NFC", path) != path:
        return "is not in Unicode normal form C"
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # half of a character that JSON writes in two: no file system takes it
        return "cannot be the name of a file"
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    if max(map(len, encoded)) > 255 or sum(map(len, encoded)) + len(parts) > 4000:
        return "is too long for a file name"
    return None


def open_media(root: Path, path: str, *, max_bytes: int) -> BinaryIO:
    """Open `path` under `root` for reading. The caller closes it.

    Links inside the root are followed as long as they end inside it. The resolved path is then opened one component at a time
    without following links, so that a link swapped in between check and open is refused.

    Raises:
        MediaError: `forbidden`, `missing`, `too_large` or `unreadable`.
    """
    check_path(path)
    descriptor = -1
    try:
        base = os.path.realpath(root)
        real = os.path.realpath(os.path.join(base, path), strict=True)
        if not Path(real).is_relative_to(base):
            raise MediaError("forbidden", f"{path}: leads out of the media root {base} through a symbolic link")
        descriptor = _open_below(base, os.path.relpath(real, base).split(os.sep))
    except OSError as error:
        raise _os_error(path, root, error) from error
    status = os.fstat(descriptor)
    problem = None
    # asked of the open descriptor, not of the path, which may name another file by now
    if not stat.S_ISREG(status.st_mode):
        problem = MediaError("forbidden", f"{path}: is not a regular file")
    elif status.st_size > max_bytes:
        problem = MediaError("too_large", f"{path}: {status.st_size} bytes, the limit is {max_bytes}")
    if problem is not None:
        os.close(descriptor)
        raise problem
    return os.fdopen(descriptor, "rb")


def list_folder(root: Path, path: str, *, most: int) -> list[str]:
    """List the names in the folder `path` under `root`, in no order, under the rules of `open_media`.

    Raises:
        MediaError: `forbidden`, `missing`, `unreadable`, or `too_large` (more than `most` names).
    """
    check_path(path)
    try:
        base = os.path.realpath(root)
        real = os.path.realpath(os.path.join(base, path), strict=True)
        if not Path(real).is_relative_to(base):
            raise MediaError("forbidden", f"{path}: leads out of the media root {base} through a symbolic link")
        descriptor = _open_below(base, [part for part in os.path.relpath(real, base).split(os.sep) if part != "."] or ["."])
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise MediaError("forbidden", f"{path}: is not a folder; list the frames, or name the folder that holds them")
            with os.scandir(descriptor) as entries:
                # one more than allowed shows that there are too many, without reading a folder of millions
                names = [entry.name for entry in itertools.islice(entries, most + 1)]
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _os_error(path, root, error) from error
    if len(names) > most:
        raise MediaError("too_large", f"{path}: the folder holds more than {most} names")
    return names


def _open_below(base: str, parts: list[str]) -> int:
    """Descriptor of a file or folder below `base`; any symbolic link on the way is an ELOOP error. Never blocks on a FIFO."""
    folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = below
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)


def _os_error(path: str, root: Path, error: OSError) -> MediaError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return MediaError("missing", f"{path}: no such file under {root}")
    if error.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO):
        return MediaError("forbidden", f"{path}: {error.strerror}")
    return MediaError("unreadable", f"{path}: {error.strerror or error} (under {root})")


def read_all(file: BinaryIO, name: str, *, max_bytes: int) -> bytes:
    """Read the rest of an open file; the cap holds even for a file that grows while it is read.

    Raises:
        MediaError: `too_large` or `unreadable`.
    """
    try:
        data = file.read(max_bytes + 1)
    except OSError as error:
        raise MediaError("unreadable", f"{name}: {error.strerror or error}") from error
    if len(data) > max_bytes:
        raise MediaError("too_large", f"{name}: more than {max_bytes} bytes")
    return data


def read_media(root: Path, path: str, *, max_bytes: int) -> bytes:
    """Read the content of `path` under `root`; hash and decode these bytes, not the path again.

    Returns:
        All bytes of the file.

    Raises:
        MediaError: as `open_media`.
    """
    with open_media(root, path, max_bytes=max_bytes) as file:
        return read_all(file, path, max_bytes=max_bytes)
