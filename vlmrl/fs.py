"""Durable file writes: the only module that writes files.

`write_bytes` and `write_text` replace a file as one event: after a power cut it holds the old content or the new one.
`append` adds to a file without syncing it; `sync` makes what was appended durable. A failed operation raises
`StorageError` with the path, and never leaves a half-written file under the name that was asked for.

Every primitive operation passes through `_do`, so that tests can record what happened and replay any prefix of it, or make the n-th
operation fail as on a full disk.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vlmrl.errors import StorageError

Kind = Literal["mkdir", "create", "write", "fsync", "rename", "unlink", "rmdir", "fsync_dir", "truncate"]

TEMPORARY = "tmp-"
"""What `temporary_name` begins with. Others may name their files so too: `is_temporary` knows ours."""
_TEMPORARY = re.compile(rf"{TEMPORARY}.+-[0-9a-f]{{12}}", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One primitive operation: `data` for writes (always at the end of the file; empty where a library wrote it), `target` for renames,
    `size` for truncation."""

    kind: Kind
    path: Path
    data: bytes = b""
    target: Path | None = None
    size: int = 0


def write_bytes(path: str | Path, data: bytes) -> None:
    """Replace the file by `data`, atomically and durably.

    Raises:
        StorageError: the old content is then still there.
    """
    _replace(Path(path), lambda temporary: _write_new(temporary, data))


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` in UTF-8, newlines as they are."""
    write_bytes(path, text.encode())


def write_with(path: str | Path, writer: Callable[[Path], None]) -> None:
    """Replace the file by what `writer(temporary_path)` writes: for libraries that write files themselves (safetensors).

    Raises:
        StorageError: the old content is then still there. Other errors of `writer` rise as they are.
    """

    def write(temporary: Path) -> None:
        _do(Op(kind="create", path=temporary), lambda: writer(temporary))
        _do(Op(kind="write", path=temporary), lambda: None)
        sync(temporary)

    _replace(Path(path), write)


def append(path: str | Path, data: bytes) -> None:
    """Add `data` to the end of the file, which is created if need be. Not synced: see `sync`.

    Raises:
        StorageError: the file then has its former length, so that a later append does not follow half a record.
    """
    path = Path(path)
    if not path.exists():
        _do(Op(kind="create", path=path), path.touch)
    before = length(path)
    try:
        _do(Op(kind="write", path=path, data=data), lambda: _append(path, data))
    except BaseException:
        truncate(path, before)
        raise


def sync(path: str | Path) -> None:
    """Make the content of a file durable (fsync). The name needs `fsync_dir` of its folder as well when the file is new."""
    path = Path(path)
    _do(Op(kind="fsync", path=path), lambda: _fsync(path, os.O_RDONLY))


def fsync_dir(path: str | Path) -> None:
    """Make the names in a folder durable: creations, renames and removals."""
    path = Path(path)
    _do(Op(kind="fsync_dir", path=path), lambda: _fsync(path, os.O_RDONLY | os.O_DIRECTORY))


def mkdir(path: str | Path) -> None:
    """Create a folder and its missing parents, durably. Nothing happens if it exists."""
    path = Path(path)
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for folder in reversed(missing):
        _do(Op(kind="mkdir", path=folder), lambda folder=folder: folder.mkdir(exist_ok=True))
        fsync_dir(folder.parent)


def rename(source: str | Path, target: str | Path) -> None:
    """Rename a file (replacing the target) or a folder (the target must not exist). Durable after `fsync_dir` of the parent."""
    source, target = Path(source), Path(target)
    _do(Op(kind="rename", path=source, target=target), lambda: os.replace(source, target))


def unlink(path: str | Path) -> None:
    """Remove a file."""
    path = Path(path)
    _do(Op(kind="unlink", path=path), path.unlink)


def remove_tree(path: str | Path) -> None:
    """Remove a file, a link (not what it points to), or a folder with all that is in it. Nothing happens if it is absent."""
    path = Path(path)
    if path.is_symlink() or path.is_file():
        unlink(path)
    elif path.exists():
        for child in sorted(path.iterdir()):
            remove_tree(child)
        _do(Op(kind="rmdir", path=path), path.rmdir)


def truncate(path: str | Path, size: int) -> None:
    """Cut a file to its first `size` bytes.

    Raises:
        ValueError: the file is shorter than that; it is never grown.
    """
    path = Path(path)
    now = length(path)
    if size > now:
        raise ValueError(f"{path}: cannot cut to {size} bytes, it has {now}")
    if size < now:
        _do(Op(kind="truncate", path=path, size=size), lambda: os.truncate(path, size))


def length(path: str | Path) -> int:
    """Bytes in a file; 0 if it does not exist."""
    path = Path(path)
    return path.stat().st_size if path.exists() else 0


def free_bytes(path: str | Path) -> int:
    """Bytes that can still be written to the file system of `path`."""
    return shutil.disk_usage(path).free


def temporary_name(name: str) -> str:
    """A fresh name next to which nothing else exists; `is_temporary` knows it as a leftover if its maker dies."""
    return f"{TEMPORARY}{name}-{uuid.uuid4().hex[:12]}"


def is_temporary(name: str) -> bool:
    """Whether `temporary_name` made this name. Whoever holds the lock of the folder may remove what is called so."""
    return _TEMPORARY.fullmatch(name) is not None


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    temporary = path.with_name(temporary_name(path.name))
    try:
        write(temporary)
        rename(temporary, path)
    except BaseException:
        remove_tree(temporary)
        raise
    fsync_dir(path.parent)


def _write_new(path: Path, data: bytes) -> None:
    _do(Op(kind="create", path=path), path.touch)
    _do(Op(kind="write", path=path, data=data), lambda: _append(path, data))
    sync(path)


def _append(path: Path, data: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _do(op: Op, act: Callable[[], object]) -> None:
    """Perform one operation; system errors get a path and advice."""
    try:
        act()
    except OSError as error:
        advice = "; free some space and run the same command again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StorageError(f"{op.path}: {op.kind} failed: {error.strerror or error}{advice}") from error
