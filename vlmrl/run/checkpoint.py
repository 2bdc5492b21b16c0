"""Checkpoints that are whole or absent.

A checkpoint is a folder `step-00000200` of safetensors and JSON with a `manifest.json` that lists size and sha256 of every file.
It is written as `tmp-...`, synced, and renamed, so that at any instant a power cut leaves the old checkpoint or the new one.
There is no "latest" file: the latest is the highest step whose manifest verifies. Steps are counted over the whole run, so the
names order across stages. Hashes detect damage, not a forger.

Rank 0 makes the folder, writes the manifest and renames; in between every rank may write files of its own into it. What fails on one rank
fails on all of them (`CheckpointRanks`).

What a failed save means is the caller's decision: `StorageError` says that this step was not saved, that the temporary folder is
gone and that older checkpoints are untouched, so a loop may go on and save at the next step.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vlmrl import faults, fs
from vlmrl.errors import CheckpointError, StorageError
from vlmrl.train.manifest import MANIFEST, DamagedError, differing, files, read_sealed, sha256, write_manifest

T = TypeVar("T")
Known = Mapping[str, dict[str, Any]] | None
"""Path -> its entry in the manifest."""
log = logging.getLogger(__name__)

SCHEMA = 2
"""Version of the layout and of what the state holds. A newer one is refused. One of schema 1 lacks what the run was begun with: its state
has no `identity`, `media` and `metrics_marks`, and nothing can be compared with them (`run.session.open_session`)."""
STATE = "state.json"
HEADROOM = 1.2
"""Free space that a save asks for, as a multiple of the last checkpoint."""
_STEP = re.compile(r"step-(\d{8})")
_OLD = re.compile(r"old-(step-\d{8})-[0-9a-f]+")


@dataclass(frozen=True, kw_only=True)
class LatestCheckpoint:
    """What `latest` found. `notes` says which folders were set aside and why; show them to the user."""

    path: Path | None
    notes: list[str] = field(default_factory=list)


def step_name(global_step: int) -> str:
    """`step-00000200`.

    Raises:
        ValueError: a step outside 0..99999999, whose name would not sort.
    """
    if not 0 <= global_step < 10**8:
        raise ValueError(f"step {global_step} is outside 0..99999999")
    return f"step-{global_step:08d}"


def step_number(name: str) -> int | None:
    """The step of a checkpoint's name; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


class CheckpointRanks(Protocol):
    """The processes that save together (`train.dist`)."""

    def on_main(self, fn: Callable[[], T]) -> T | None:
        """Run `fn` on the first one; its failure is that of all."""
        ...

    def gather(self, value: T) -> list[T]:
        """`value` of every process, on every process."""
        ...


class _Alone:
    def on_main(self, fn: Callable[[], T]) -> T | None:
        return fn()

    def gather(self, value: T) -> list[T]:
        return [value]


ALONE: CheckpointRanks = _Alone()
"""The collective of one process."""


def save(
    folder: Path,
    *,
    step_name: str,
    write_tensors: Callable[[Path], Known],
    state: Mapping[str, Any] | bytes,
    manifest_extra: Mapping[str, Any],
    keep: int,
    collective: CheckpointRanks = ALONE,
) -> Path:
    """Write `folder/<step_name>` durably, then delete all but the newest `keep` checkpoints.

    Args:
        folder: the run's folder of checkpoints.
        write_tensors: writes any files below the temporary folder that it is given (`train.tensors.write_tensors` makes safetensors). It is
            called on every rank, and what it raises on one it must raise on all. It returns the manifest's entries of files whose hashes
            the ranks know already, or None.
        state: everything else that must survive; plain JSON values with text keys and finite numbers, or what `encoded` made of them.
        manifest_extra: stored under `extra` in the manifest (step, world size, config hash, versions).
        collective: the ranks; all of them call this with the same arguments.

    Raises:
        StorageError: the disk refused. If the new folder was not complete, it is removed and the former checkpoints are as before.
        CheckpointError: `state` or `manifest_extra` would not come back from JSON as they are.
    """
    if step_number(step_name) is None or keep < 1:
        raise ValueError(f"step_name {step_name!r} must be like 'step-00000200' and keep ({keep}) at least 1")

    raw = state if isinstance(state, bytes) else encoded(state)
    _json(manifest_extra, "manifest_extra")
    made: Path | None = None
    try:
        made = collective.on_main(lambda: _begin(folder, step_name))
        temporary = collective.gather(made)[0]
        assert temporary is not None
        known = write_tensors(temporary)
        collective.on_main(lambda: _commit(folder, step_name, temporary, raw, manifest_extra, keep, known))
    except BaseException as error:
        if made is not None:
            fs.remove_tree(made)
        if isinstance(error, OSError):  # from `write_tensors` of the caller; what goes through `fs` already is a StorageError
            raise StorageError(f"{folder / step_name}: not saved: {error}; free some space or check the disk") from error
        raise
    return folder / step_name


def encoded(state: Mapping[str, Any]) -> bytes:
    """A state as it is now, for `save`.

    Raises:
        CheckpointError: it would not come back from JSON as it is.
    """
    return _json(state, "state")


def latest(folder: Path) -> LatestCheckpoint:
    """The highest step that verifies. Call it on rank 0 only, with the run's lock held: damaged folders are renamed to `bad-...`.

    Raises:
        CheckpointError: the highest step was written by a newer version (that is no damage, and falling back would fork the run).
    """
    notes: list[str] = []
    if not folder.is_dir():
        return LatestCheckpoint(path=None)
    _settle_superseded(folder, notes)
    for path in reversed(steps(folder)):
        problems = verify(path)
        if not problems:
            return LatestCheckpoint(path=path, notes=notes)
        _set_aside(path, problems, notes)
    return LatestCheckpoint(path=None, notes=notes)


def steps(folder: Path) -> list[Path]:
    """Checkpoint folders by rising step, unverified."""
    return sorted(p for p in folder.iterdir() if step_number(p.name) is not None and p.is_dir()) if folder.is_dir() else []


def verify(path: Path) -> list[str]:
    """Everything wrong with a checkpoint folder, one line each; empty when every file is as it was written.

    Raises:
        CheckpointError: its schema is newer than this code.
    """
    try:
        manifest = read_manifest(path)
    except DamagedError as error:
        return [str(error)]
    return differing(path, manifest["files"])


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint: `schema`, `name`, `files`, `extra`, `digest`.

    Raises:
        CheckpointError: missing or damaged, or its schema is newer than this code (both versions are named).
    """
    manifest = read_sealed(path)
    if manifest["schema"] > SCHEMA:
        written = manifest["schema"]
        raise CheckpointError(f"{path}: written with checkpoint schema {written}, this version reads up to {SCHEMA}; upgrade vlmrl")
    if manifest["name"] != path.name:
        raise DamagedError(f"{MANIFEST}: belongs to '{manifest['name']}'")
    return manifest


def load_state(path: Path) -> dict[str, Any]:
    """The JSON state of a checkpoint, checked against its manifest.

    Raises:
        CheckpointError: missing or damaged.
    """
    entry = next((e for e in read_manifest(path)["files"] if e["path"] == STATE), None)
    file = path / STATE
    if entry is None or not file.is_file() or sha256(file) != entry["sha256"]:
        raise CheckpointError(f"{file}: missing, or its content differs from the manifest")
    return json.loads(file.read_bytes())


def retain(folder: Path, keep: int) -> list[str]:
    """Delete old checkpoints, keeping the newest `keep` steps and always the newest that verifies. `save` calls it; a resumed run
    may call it too, since a process that died after its last save left the older ones.

    Returns notes on what could not be deleted: that wastes space but loses nothing, so it is not an error.
    """
    known = steps(folder)
    doomed = known[:-keep]
    if not doomed:
        return []
    if not any(not verify(path) for path in reversed(known[-keep:])):
        valid = next((path for path in reversed(doomed) if not verify(path)), None)
        doomed = [path for path in doomed if path != valid]
    return _discard_all(doomed)


def _begin(folder: Path, name: str) -> Path:
    """A new temporary folder."""
    faults.point("ckpt.start")
    fs.mkdir(folder)
    _check_space(folder)
    temporary = folder / fs.temporary_name(name)
    try:
        fs.mkdir(temporary)
    except BaseException:
        fs.remove_tree(temporary)
        raise
    return temporary


def _commit(folder: Path, name: str, temporary: Path, state: bytes, extra: Mapping[str, Any], keep: int, known: Known) -> None:
    """Seal the temporary folder and give it its name, in place of one of the same step."""
    superseded: Path | None = None
    try:
        fs.write_bytes(temporary / STATE, state)
        _sync_tree(temporary)
        faults.point("ckpt.after_tensors")
        write_manifest(temporary, {"schema": SCHEMA, "name": name, "extra": dict(extra)}, known)
        faults.point("ckpt.after_manifest")
        superseded = _make_way(folder / name)
        fs.rename(temporary, folder / name)
    except BaseException:
        if superseded is not None:
            fs.rename(superseded, folder / name)
        raise
    fs.fsync_dir(folder)
    faults.point("ckpt.after_rename")
    for note in _discard_all([] if superseded is None else [superseded]) + retain(folder, keep):
        log.warning(note)
    faults.point("ckpt.after_retention")


def _check_space(folder: Path) -> None:
    known = steps(folder)
    if not known:
        return
    need = int(HEADROOM * sum(p.stat().st_size for p in files(known[-1]).values()))
    free = fs.free_bytes(folder)
    if free < need:
        raise StorageError(f"{folder}: {free} bytes free, a checkpoint needs about {need}; free some space or lower checkpoint.keep")


def _make_way(path: Path) -> Path | None:
    """Move a folder of the same step aside; a valid one is returned and goes only when its successor is durable."""
    if not path.exists():
        return None
    problems = verify(path)
    if problems:
        notes: list[str] = []
        _set_aside(path, problems, notes)
        log.warning(notes[0])
        return None
    aside = path.with_name(f"old-{fs.temporary_name(path.name).removeprefix(fs.TEMPORARY)}")
    fs.rename(path, aside)
    return aside


def _settle_superseded(folder: Path, notes: list[str]) -> None:
    """After a crash between the two renames of a repeated save, give the former checkpoint its name back."""
    for aside in sorted(p for p in folder.iterdir() if _OLD.fullmatch(p.name)):
        match = _OLD.fullmatch(aside.name)
        assert match is not None
        path = folder / match[1]
        if path.exists() and verify(path):
            _set_aside(path, verify(path), notes)
        if path.exists():
            _discard(aside)
        else:
            fs.rename(aside, path)
            fs.fsync_dir(folder)


def _set_aside(path: Path, problems: list[str], notes: list[str]) -> None:
    bad = path.with_name(f"bad-{fs.temporary_name(path.name).removeprefix(fs.TEMPORARY)}")
    fs.rename(path, bad)
    fs.fsync_dir(path.parent)
    notes.append(f"{path} is damaged and was renamed to {bad.name}: {'; '.join(problems)}")


def _discard_all(paths: list[Path]) -> list[str]:
    notes: list[str] = []
    for path in paths:
        try:
            _discard(path)
        except (StorageError, OSError) as error:
            notes.append(f"old checkpoint not deleted: {error}")
    return notes


def _discard(path: Path) -> None:
    """Delete a folder; the rename first, so that a crash in between leaves no half of a checkpoint under its name."""
    gone = path.with_name(fs.temporary_name(path.name))
    fs.rename(path, gone)
    fs.fsync_dir(path.parent)
    fs.remove_tree(gone)


def _sync_tree(path: Path) -> None:
    """Sync what the caller wrote, files and folders, deepest first."""
    for file in files(path).values():
        if file.is_symlink() or not file.is_file():
            raise CheckpointError(f"{file}: a checkpoint holds plain files only")
        fs.sync(file)
    for folder in sorted((p for p in path.rglob("*") if p.is_dir()), reverse=True):
        fs.fsync_dir(folder)
    fs.fsync_dir(path)


def _json(value: Mapping[str, Any], what: str) -> bytes:
    """JSON bytes of a value that comes back equal.

    Raises:
        CheckpointError: it would not (tuples, number keys, NaN, tensors).
    """
    try:
        text = json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{what} is not plain JSON: {error}") from error
    back = json.loads(text)
    changed = [key for key in sorted(set(back) | {str(k) for k in value}) if key not in value or key not in back or back[key] != value[key]]
    if changed:
        raise CheckpointError(f"{what} changes in JSON under {', '.join(changed)}: use lists for tuples and text for keys")
    return text.encode()
