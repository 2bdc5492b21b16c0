"""Lays an official download out in a folder: files from a fetched copy of their repository, and stand-ins for media that are not in it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.official.case import Case
from tests.support.standins import make_medium

VARIABLE = "VLMRL_OFFICIAL"
"""Names the folder of fetched repositories: `<owner>/<name>` (a clone, or files without git) or `<owner>+<name>/repo` (a git directory)."""


class Absent(Exception):
    """The repository of a case was not fetched; the text says how to get it."""


class Incomplete(Exception):
    """The repository was fetched, but the file is not in it at the commit of the case."""


def lay_out(case: Case, root: Path) -> None:
    """Write the official files of `case` below `root`, and what else its preparation looks for.

    Raises:
        Absent: there is no copy of the repository, or `VLMRL_OFFICIAL` is not set.
        Incomplete: the copy lacks the commit or a file of it.
    """
    copy = _copy(case)
    (root / "placeholder").parent.mkdir(parents=True, exist_ok=True)
    for source, place in case.files.items():
        found = _tree(copy, case.commit, source) if _is_git(copy) else _plain(copy, source)
        for path, data in found.items():
            target = root / (place + path.removeprefix(source) if source.endswith("/") else place)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    for folder in case.folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
    if case.pour is not None:
        case.pour(root)
    if case.sizes is not None:
        _link(root, {path: ("image", size) for path, size in case.sizes(root).items()})


def fill_by_links(root: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Make every medium that rows name and that is not below `root`: links to one picture or clip per kind of file. How many."""
    wanted: dict[str, tuple[str, tuple[int, int] | None]] = {}
    for row in rows:
        for key in ("image", "images", "video", "videos"):
            given = row.get(key)
            for item in given if isinstance(given, list) else [given]:
                path = item["path"] if isinstance(item, dict) else item
                if isinstance(path, str) and not (root / path).exists():
                    wanted[path] = ("image" if key.startswith("image") else "video", None)
    _link(root, wanted)
    return len(wanted)


def _link(root: Path, wanted: Mapping[str, tuple[str, tuple[int, int] | None]]) -> None:
    made: dict[object, Path] = {}
    for path, (kind, size) in wanted.items():
        target, key = root / path, (Path(path).suffix, kind, size)
        target.parent.mkdir(parents=True, exist_ok=True)
        if key in made:
            os.link(made[key], target)
        else:
            make_medium(root, path, kind, {} if size is None else {"size": size})
            made[key] = target


def _copy(case: Case) -> Path:
    how = f"git clone https://github.com/{case.repository} DIR/{case.repository}, then {VARIABLE}=DIR"
    given = os.environ.get(VARIABLE)
    if not given:
        raise Absent(f"{VARIABLE} is not set; {how}")
    owner, _, name = case.repository.partition("/")
    for place in (f"{owner}/{name}/.git", f"{owner}/{name}", f"{owner}+{name}/repo/.git", f"{owner}+{name}/repo"):
        if (Path(given) / place).is_dir():
            return Path(given) / place
    raise Absent(f"no copy of {case.repository} in {given}; {how}")


def _is_git(copy: Path) -> bool:
    return (copy / "HEAD").is_file() and (copy / "objects").is_dir()


def _tree(copy: Path, commit: str, source: str) -> dict[str, bytes]:
    """Path in the repository -> content, of one path of a commit."""
    command = ["git", f"--git-dir={copy}", "archive", "--format=tar", commit, "--", source.rstrip("/")]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
        raise Incomplete(
            f"{copy} does not have {source} at {commit} ({done.stderr.decode(errors='replace').strip()}); `git fetch origin {commit}` there"
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive.getmembers() if member.isfile()]
        return {name: file.read() for name, file in files if file is not None}


def _plain(copy: Path, source: str) -> dict[str, bytes]:
    place = copy / source
    if not place.exists():
        raise Incomplete(f"{place}: no such file; is the checkout complete?")
    paths = [path for path in sorted(place.rglob("*")) if path.is_file()] if place.is_dir() else [place]
    return {path.relative_to(copy).as_posix(): path.read_bytes() for path in paths}
