"""What the cache of generated worlds, base models and audited rows holds, and removing it. It is made again when a recipe wants it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.errors import ConfigError
from vlmrl.extras.toy.lock import locked
from vlmrl.run.ui import Ui

KINDS = {"world": "generated media and rows", "base": "pretrained base model", "rows": "rows of Python, and what audits found"}
"""Beginning of a folder's name -> what is in it. Nothing else in the cache is listed or removed."""
_NAME = re.compile(r"(world|base|rows)-[0-9a-f]+[0-9a-z-]*")


@dataclass(frozen=True, kw_only=True)
class CacheFolder:
    """A folder of the cache."""

    path: Path
    kind: str
    bytes: int
    files: int
    written: float
    """When something in it was last written, in seconds since the epoch."""

    def json(self) -> dict[str, Any]:
        return {"name": self.path.name, "kind": self.kind, "bytes": self.bytes, "files": self.files, "written": self.written}


def entries(cache: Path) -> list[CacheFolder]:
    """The folders of a cache, largest first; none where there is no cache."""
    found: list[CacheFolder] = []
    for folder in sorted(cache.iterdir()) if cache.is_dir() else ():
        if folder.is_symlink() or not folder.is_dir() or not (match := _NAME.fullmatch(folder.name)):
            continue
        states = [path.lstat() for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
        found.append(
            CacheFolder(
                path=folder,
                kind=KINDS[match[1]],
                bytes=sum(state.st_size for state in states),
                files=len(states),
                written=max((state.st_mtime for state in states), default=folder.stat().st_mtime),
            )
        )
    return sorted(found, key=lambda entry: (-entry.bytes, entry.path.name))


def chosen(found: Iterable[CacheFolder], names: Iterable[str], *, older_than: float | None, now: float) -> list[CacheFolder]:
    """Those with these names, or all; of them those in which nothing was written for `older_than` days.

    Raises:
        ConfigError: a name is not in the cache.
    """
    known = {entry.path.name: entry for entry in found}
    wanted = list(names) or list(known)
    lost = [name for name in wanted if name not in known]
    if lost:
        raise ConfigError(f"{lost[0]}: not in the cache; there are: {', '.join(known) or 'none'}")
    return [known[name] for name in wanted if older_than is None or now - known[name].written > older_than * 86400]


def remove(cache: Path, gone: Iterable[CacheFolder], ui: Ui) -> None:
    """Remove folders, while nobody makes anything in the cache.

    Raises:
        StorageError: the disk refused.
    """
    with locked(cache / "LOCK", ui):
        for entry in gone:
            fs.remove_tree(entry.path)
