"""Copies the notebooks, plugins and recipes that the documentation speaks of."""

from __future__ import annotations

from pathlib import Path

from vlmrl import fs, paths
from vlmrl.errors import ConfigError

FOLDER = "examples"


def files() -> list[Path]:
    """List the examples, relative to their folder."""
    source = paths.shipped(FOLDER)
    found = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    return sorted(path for path in found if "__pycache__" not in path.parts and path.suffix != ".pyc")


def copied(to: Path) -> list[Path]:
    """Copy every example below `to`.

    Raises:
        ConfigError: a file is there already; nothing was written.
    """
    there = [to / name for name in files() if (to / name).exists()]
    if there:
        raise ConfigError(f"{there[0]} is there already and is not overwritten; give another folder, or move it away")
    for name in files():
        fs.mkdir((to / name).parent)
        fs.write_bytes(to / name, paths.shipped(FOLDER, name.as_posix()).read_bytes())
    return [to / name for name in files()]
