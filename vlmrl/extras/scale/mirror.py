"""Checkpoints at a second place: the run's directory again, below a URL of any file system that fsspec knows (`checkpoint.mirror`).

The local directory stays the truth. After each checkpoint is committed, what has changed beside the checkpoints is uploaded, then the
checkpoint, and its manifest as the last file of all: a checkpoint without a manifest is one whose upload was cut, and nobody takes it. What
the local directory no longer has is deleted, a manifest first. On a machine whose run folder is empty the same layout is read back, and
every file of the checkpoint is compared with the manifest; the rest is compared when the run starts, like any other (`run.resume`).

Not uploaded: the journal (its steps are sampled again), `final/` and `FINISHED` (made again from the last checkpoint), traces.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec.core import url_to_fs

from vlmrl import fs
from vlmrl.errors import CheckpointError, ConfigError, StorageError
from vlmrl.run.checkpoint import SCHEMA, step_number
from vlmrl.train.manifest import MANIFEST, DamagedError, differing, unsealed

RECORD = "run.json"
"""Fetched last: a folder without it holds no run."""
CHECKPOINTS = "checkpoints"
_LEFT_OUT = ("LOCK", "FINISHED", "journal", "final", "profile", "hub", CHECKPOINTS)
_SET_ASIDE = re.compile(r"(bad|old)-.+-[0-9a-f]{12}")


class Mirror:
    """The place of one run."""

    def __init__(self, url: str, name: str):
        """
        Args:
            url: folder of runs, such as `s3://bucket/runs` or `file:///mnt/runs`; the run's is `<url>/<name>`.

        Raises:
            ConfigError: an unknown protocol, or its package is not installed.
        """
        try:
            self._fs, root = url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"checkpoint.mirror: '{url}': {error}") from error
        self._root, self.url = f"{root.rstrip('/')}/{name}", f"{url.rstrip('/')}/{name}"
        self._seen: dict[str, tuple[int, int, int]] = {}
        """Path -> what its file was when this process uploaded it."""

    def push(self, run: Path, newest: Path) -> None:
        """Upload what a machine without `run` needs to go on from the checkpoint `newest`.

        Raises:
            StorageError: the other side refused; its older checkpoints are as they were.
        """
        try:
            self._fs.invalidate_cache()
            for folder in sorted(path for path in run.iterdir() if path.name not in _LEFT_OUT and _counts(path)):
                self._push_tree(run, folder)
            self._push_sealed(run, newest)
            here = {path.name for path in (run / CHECKPOINTS).iterdir()}
            for name in set(self._steps()) - here - {newest.name}:
                self._discard(name)
        except Exception as error:  # every file system has errors of its own
            raise StorageError(f"{self.url}: {newest.name} was not uploaded: {error}") from error

    def pull(self, into: Path) -> str | None:
        """Fetch the newest complete checkpoint, and the rest of the run, into a new folder; a line about it, or None where there is none.

        Raises:
            CheckpointError: it is damaged; nothing is left of `into`.
            StorageError: the other side does not answer, or the disk refuses.
        """
        try:
            self._fs.invalidate_cache()
            manifest, name = next(((self._manifest(name), name) for name in reversed(self._steps()) if self._complete(name)), (None, ""))
            if manifest is None:
                return None
            self._pull_step(name, manifest, into / CHECKPOINTS / name)
            others = {path[len(self._root) + 1 :] for path in self._fs.find(self._root)}
            for other in sorted(others, key=lambda path: path == RECORD):
                if not other.startswith(f"{CHECKPOINTS}/"):
                    self._get(other, _below(into, other))
        except (CheckpointError, StorageError):
            fs.remove_tree(into)
            raise
        except Exception as error:  # as above
            fs.remove_tree(into)
            raise StorageError(f"{self.url}: cannot be read: {error}; without it the run would start from nothing") from error
        return f"fetched {name} from {self.url}"

    # ---- upload ----

    def _push_tree(self, run: Path, path: Path) -> None:
        if path.is_dir() and (path / MANIFEST).is_file():
            self._push_sealed(run, path)
        elif path.is_dir():
            for child in sorted(child for child in path.iterdir() if _counts(child)):
                self._push_tree(run, child)
        else:
            self._put(run, path)

    def _push_sealed(self, run: Path, folder: Path) -> None:
        """A folder with a manifest: all of it, or nothing where the manifest there is the one here."""
        manifest = folder / MANIFEST
        there = self._place(manifest.relative_to(run).as_posix())
        if self._exists(there):
            if self._fs.cat_file(there) == manifest.read_bytes():
                return
            self._fs.rm_file(there)
        for file in sorted(path for path in folder.rglob("*") if path.is_file() and path != manifest):
            self._put(run, file)
        self._put(run, manifest)

    def _put(self, run: Path, path: Path) -> None:
        name = path.relative_to(run).as_posix()
        try:
            status = path.stat()
            now = (status.st_size, status.st_mtime_ns, status.st_ino)
            if self._seen.get(name) == now:
                return
            place = self._place(name)
            self._fs.makedirs(place.rsplit("/", 1)[0], exist_ok=True)
            self._fs.put_file(str(path), place)
        except FileNotFoundError:
            if path.exists():
                raise
            return  # replaced or removed meanwhile: it comes with the next checkpoint
        self._seen[name] = now

    def _discard(self, name: str) -> None:
        """Delete a checkpoint, its manifest first: half of one must not look like a whole one."""
        if self._complete(name):
            self._fs.rm_file(self._place(f"{CHECKPOINTS}/{name}/{MANIFEST}"))
        self._fs.rm(self._place(f"{CHECKPOINTS}/{name}"), recursive=True)

    # ---- download ----

    def _pull_step(self, name: str, manifest: dict[str, Any], into: Path) -> None:
        """
        Raises:
            CheckpointError: a file is missing, or not as it was written.
        """
        for entry in manifest["files"]:
            try:
                self._get(f"{CHECKPOINTS}/{name}/{entry['path']}", _below(into, entry["path"]))
            except FileNotFoundError:
                continue  # told below, with all others
        self._get(f"{CHECKPOINTS}/{name}/{MANIFEST}", into / MANIFEST)
        problems = differing(into, manifest["files"])
        if problems:
            raise self._damaged(name, problems[0])

    def _get(self, name: str, path: Path) -> None:
        fs.mkdir(path.parent)
        place = self._place(name)
        if not self._exists(place):
            raise FileNotFoundError(place)
        fs.write_with(path, lambda temporary: self._fs.get_file(place, str(temporary)))

    def _manifest(self, name: str) -> dict[str, Any]:
        try:
            manifest = unsealed(self._fs.cat_file(self._place(f"{CHECKPOINTS}/{name}/{MANIFEST}")), MANIFEST)
        except DamagedError as error:
            raise self._damaged(name, str(error)) from error
        if manifest["name"] != name:
            raise self._damaged(name, f"{MANIFEST}: belongs to '{manifest['name']}'")
        if manifest["schema"] > SCHEMA:
            raise CheckpointError(f"{self.url}: {name} is of checkpoint schema {manifest['schema']}; upgrade vlmrl")
        return manifest

    def _damaged(self, name: str, problem: str) -> CheckpointError:
        where = f"{self.url}/{CHECKPOINTS}/{name}"
        return CheckpointError(f"{where} is damaged: {problem}; restore it, or delete that folder to go on from the one before")

    def _steps(self) -> list[str]:
        """Names of the checkpoints there, complete or not, by rising step."""
        try:
            found = self._fs.ls(self._place(CHECKPOINTS), detail=False)
        except FileNotFoundError:
            return []
        names = {path.rstrip("/").rsplit("/", 1)[-1] for path in found}
        return sorted(name for name in names if step_number(name) is not None)

    def _complete(self, name: str) -> bool:
        return self._exists(self._place(f"{CHECKPOINTS}/{name}/{MANIFEST}"))

    def _exists(self, place: str) -> bool:
        """Not fsspec's `exists`, to which a place that does not answer is one that is empty."""
        try:
            self._fs.info(place)
        except FileNotFoundError:
            return False
        return True

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"


def _counts(path: Path) -> bool:
    return not fs.is_temporary(path.name) and not _SET_ASIDE.fullmatch(path.name)


def _below(folder: Path, name: str) -> Path:
    """
    Raises:
        CheckpointError: the name leads elsewhere.
    """
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute():
        raise CheckpointError(f"a file of the mirror is called '{name}', which leads out of the run's folder")
    return folder.joinpath(*parts)
