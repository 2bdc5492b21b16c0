"""Finds the folder that the paths of media are relative to: where all of their files are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vlmrl.errors import ConfigError
from vlmrl.extras.starter.look import MOST
from vlmrl.types import Sample

MOST_FOLDERS = 200
"""Folders that are looked in beside each other."""
ROOT = Path("/")


def paths_of(samples: Iterable[Sample]) -> list[str]:
    """The paths of the media of rows, each once."""
    refs = (ref for sample in samples for ref in sample.media)
    return list(dict.fromkeys(one.path for ref in refs for one in (ref.frames or (ref,))))


def folder_of(paths: Sequence[str], data: Path, given: Path | None, *, absolute: bool) -> tuple[Path, str]:
    """The folder of the media, and how it was found.

    Args:
        data: file or folder of the rows.
        given: what `--media-root` says.
        absolute: the paths are those of the whole machine, without the leading slash.

    Raises:
        ConfigError: the files are in no folder that was looked in, or in several.
    """
    if given is not None:
        if not given.is_dir():
            raise ConfigError(f"--media-root: no folder {given}")
        if not absolute and not _there(given, paths):
            raise ConfigError(f"--media-root: none of the {len(paths)} media that were looked for is below {given}, as '{paths[0]}'")
        return given, "given"
    if absolute:
        folder = ROOT / os.path.commonpath([os.path.dirname(path) for path in paths])
        if _there(ROOT, paths) < (1 - MOST) * len(paths):
            raise ConfigError(f"media: /{paths[0]} is not there; move the files, or write paths relative to a folder and give --media-root")
        return folder, "the rows give absolute paths; all are below it"
    best, most = list[Path](), 0
    for group in _groups(data):
        for folder in group:
            count = _there(folder, paths)
            if count > most:
                best, most = [folder], count
            elif count and count == most and folder not in best:
                best.append(folder)
        if most == len(paths):
            break
    if most < (1 - MOST) * len(paths):
        looked = ", ".join(dict.fromkeys(str(group[0]) for group in _groups(data) if group))
        first = next(path for path in paths if not best or not (best[0] / path).exists())
        raise ConfigError(
            f"media: {len(paths) - most} of {len(paths)} files were not found, first '{first}'; looked in {looked} and the folders in "
            "them; say what their paths are relative to: --media-root FOLDER"
        )
    if len(best) > 1:
        raise ConfigError(f"media: the files are in several folders; say which: {' or '.join(f'--media-root {one}' for one in best)}")
    return best[0], f"{most} of {len(paths)} files that were looked for are below it"


def folders(data: Path) -> Iterator[Path]:
    """All folders that are looked in."""
    return (folder for group in _groups(data) for folder in group)


def _groups(data: Path) -> Iterator[list[Path]]:
    """Folders to look in, those that are as good as each other together: of the rows, in it, around it, beside it, and here."""
    own = data if data.is_dir() else data.parent
    for folder in dict.fromkeys((own, own.absolute().parent if own.absolute() != ROOT else own, Path("."))):
        yield [folder]
        yield _inside(folder)


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))[:MOST_FOLDERS]
    except OSError:
        return []


def _there(folder: Path, paths: Sequence[str]) -> int:
    return sum((folder / path).exists() for path in paths)
