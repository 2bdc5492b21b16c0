"""A run's directory: who may use it, what is in it, what may change when the same command runs again, and signals.

    <root>/<name>/  LOCK  run.json  config.yaml  environment.json  metrics.jsonl  journal/  checkpoints/  eval/  groups/
                    report.html  FINISHED

The lock is held for the life of the process and vanishes with it, however it dies. Running the same command again resumes.

The lock is on the file and, where the file system can, on the directory itself, so that deleting LOCK lets nobody in. The holder looks
before each step is written whether both are still the ones that it has locked.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

import yaml

from vlmrl import __version__, faults, fs
from vlmrl.config.schema import Config
from vlmrl.errors import CheckpointError, ConfigError, RunBusyError, StorageError

Resume = Literal["auto", "never", "must"]
_PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "numpy", "tokenizers")
_LAYOUT = ("LOCK", "config.yaml", "environment.json", "journal", "checkpoints", "eval")
_FLAT = ("journal", "checkpoints", "inputs", "stages", "best", "judges", "profile")
_DEEP = ("eval", "groups")
"""Folders of a run in which files are written under a temporary name first; those of `_DEEP` have folders of their own."""
_SCHEMA = 1
_locks: set[int] = set()


@dataclass(kw_only=True)
class RunDir:
    """An opened run. Paths exist or are ready to be written; `stop_requested` is set by the first SIGTERM or SIGINT."""

    path: Path
    resumed: bool = False
    """Whether the directory held this run before."""
    finished: bool = False
    """Whether it is complete: then there is nothing to do but report."""
    notes: list[str] = field(default_factory=list)
    """What the user should know: changed options, other versions, leftovers removed."""
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its options that cannot change, as it was begun; known on rank 0."""
    stop_signal: str | None = None
    lost: Callable[[], str | None] = lambda: None
    """Why the directory is no longer locked by this process, for rank 0; None while it is."""

    def still_ours(self) -> None:
        """Ask on rank 0 before something is written.

        Raises:
            RunBusyError: the directory or its lock was deleted, moved or replaced, so another process may be writing to it.
        """
        problem = self.lost()
        if problem is not None:
            raise RunBusyError(f"{problem} while this process was using it; another one may have started, so nothing more is written")

    @property
    def stop_requested(self) -> bool:
        return self.stop_signal is not None

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def eval(self) -> Path:
        return self.path / "eval"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def finish(self, **known: Any) -> None:
        """Mark the run complete, with what the next start may answer from (`extras.resume.answer`). Only rank 0 calls it."""
        fs.write_text(self.path / "FINISHED", json.dumps({"wall": time.time(), "vlmrl": __version__, **known}) + "\n")
        self.finished = True

    def reopen(self) -> None:
        """Take the mark away: something of the run is damaged and will be made again. Only rank 0 calls it."""
        fs.unlink(self.path / "FINISHED")
        fs.fsync_dir(self.path)

    def note(self, text: str) -> None:
        """Add a line to the history of this start in `run.json`. Only rank 0 calls it."""
        record = _read_record(self.path / "run.json")
        record["history"][-1]["notes"].append(text)
        fs.write_text(self.path / "run.json", json.dumps(record, indent=1, sort_keys=True) + "\n")


class Options(NamedTuple):
    """What a run is opened with."""

    text: str
    """The whole configuration as YAML. What differs at resume and is not in `fixed` is applied and noted."""
    hash: str
    fixed: Mapping[str, Any]
    """The part that may not change between start and resume, as nested JSON values (model, seed, data, method)."""
    began: Mapping[str, Any] | None = None
    """That part of a run that is there, with what of it may change changed; None: as its record says."""


@contextmanager
def open_run(
    root: str | Path,
    name: str,
    options: Options,
    *,
    settle: Callable[[RunDir, Mapping[str, Any]], Options] | None = None,
    resume: Resume = "auto",
    fetch: Callable[[Path], str | None] | None = None,
    run_synchronized: Callable[[Callable[[], None]], None] | None = None,
    is_main: bool = True,
) -> Iterator[RunDir]:
    """Lock, create or re-open `<root>/<name>`, and watch for signals until the block ends.

    Args:
        settle: the options for a run that is there, from the fixed ones that it was begun with: what a recipe leaves to the machine
            stays as it was.
        resume: `auto` starts or resumes, `never` refuses a used directory, `must` refuses a new one.
        fetch: fills a new folder with a run that is kept elsewhere, its record last; a line about it, or None where there is none. It is
            asked when there is no run here.
        run_synchronized: runs local work on all ranks and raises on all if one raises (`train.dist`); default: this process only.
        is_main: whether this process (rank 0) locks and writes.

    Raises:
        ConfigError: `name` is not a plain name, a fixed option differs (all are listed), or `must` finds no run.
        RunBusyError: another process holds the lock (who and since when is said), or `never` finds a run.
        StorageError: the directory cannot be written or locked.
    """
    if name in ("", ".", "..") or "/" in name or "\x00" in name or name.startswith(fs.TEMPORARY):
        raise ConfigError(f"run.name: {name!r} is not a plain folder name")
    run = RunDir(path=Path(root) / name)
    with ExitStack() as stack:

        def prepare() -> None:
            if is_main:
                if resume == "must" and fetch is None and not (run.path / "run.json").exists():
                    raise ConfigError(f"{run.path}: no run to resume; check run.root and run.name")
                fs.mkdir(run.path)
                run.lost = stack.enter_context(locked(run.path / "LOCK"))
                if fetch is not None and not (run.path / "run.json").exists():
                    _fetch(run, fetch)
                _prepare(run, options, settle, resume)

        (run_synchronized or (lambda fn: fn()))(prepare)
        run.finished = (run.path / "FINISHED").exists()
        stack.enter_context(_signals(run))
        faults.point("run.opened")
        yield run


def stage_folder(run: RunDir, cfg: Config, index: int) -> Path:
    """Where the weights of a stage are exported to."""
    return run.path / "stages" / cfg.stages[index].name


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Lines `a.b: 1 in the run, 2 now` for every leaf that differs between two nested values."""
    old, new = (_leaves(value) if value else {} for value in (before, after))
    absent = "absent"
    return [
        f"{key}: {json.dumps(old[key]) if key in old else absent} in the run, {json.dumps(new[key]) if key in new else absent} now"
        for key in sorted(set(old) | set(new))
        if key not in old or key not in new or old[key] != new[key]
    ]


def environment() -> dict[str, Any]:
    """Versions, machine and threads: what must be equal for a resumed run to be bit-exact."""
    import torch

    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "vlmrl": __version__,
        "python": platform.python_version(),
        "packages": versions,
        "machine": {"system": platform.system(), "release": platform.release(), "arch": platform.machine(), "cpus": os.cpu_count()},
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else [],
        "threads": torch.get_num_threads(),
    }


def _prepare(run: RunDir, options: Options, settle: Callable[[RunDir, Mapping[str, Any]], Options] | None, resume: Resume) -> None:
    record_path = run.path / "run.json"
    if record_path.exists():
        if resume == "never":
            raise RunBusyError(f"{run.path} already holds a run; choose another run.name, or resume it")
        record = _read_record(record_path)
        run.resumed = True
        options = options if settle is None else settle(run, record["fixed"])
        record["fixed"] = options.began or record["fixed"]
        _compare(run, record, options.text, options.fixed, now := environment())
    else:
        now = environment()
        _refuse_foreign(run)
        record = {"schema": _SCHEMA, "fixed": options.fixed, "history": []}
    run.fixed = record["fixed"]
    for leftover in _leftovers(run.path):
        fs.remove_tree(leftover)
        run.notes.append(f"removed {leftover.relative_to(run.path)}, which a stopped process left unfinished")
    record["history"].append({"wall": time.time(), "host": socket.gethostname(), "config_hash": options.hash, "notes": run.notes})
    for folder in (run.journal, run.checkpoints, run.eval):
        fs.mkdir(folder)
    _write_if_changed(run.config, options.text)
    _write_if_changed(run.path / "environment.json", json.dumps(now, indent=1, sort_keys=True) + "\n")
    fs.write_text(record_path, json.dumps(record, indent=1, sort_keys=True) + "\n")


def _fetch(run: RunDir, fetch: Callable[[Path], str | None]) -> None:
    """Take in a run that is kept elsewhere. It is whole in a temporary folder before anything of it gets its name, and the record is named
    last, so a process that dies in between is carried on."""
    whole = next((path for path in run.path.glob(f"{fs.TEMPORARY}fetched-*") if (path / "run.json").exists()), None)
    if whole is None:
        _refuse_foreign(run)
        whole = run.path / fs.temporary_name("fetched")
        note = fetch(whole)
        if note is None:
            return
        run.notes.append(note)
    for child in sorted(whole.iterdir(), key=lambda path: path.name == "run.json"):
        fs.remove_tree(run.path / child.name)
        fs.rename(child, run.path / child.name)
    fs.fsync_dir(run.path)
    fs.remove_tree(whole)


def _leftovers(path: Path) -> list[Path]:
    """What a dead process left unfinished. Only names that we make, in the folders that we write to: a user's folder beside them, or
    a stage whose name looks alike, is nobody's leftover."""
    flat = [p for name in (".", *_FLAT) if (path / name).is_dir() for p in (path / name).iterdir()]
    deep = [p for name in _DEEP for p in (path / name).rglob("*")]
    return sorted(p for p in {*flat, *deep} if fs.is_temporary(p.name) and not fs.is_temporary(p.parent.name))


def _refuse_foreign(run: RunDir) -> None:
    """A directory without a record may hold only what a process that died while creating it could have left."""
    foreign = [p.name for p in run.path.iterdir() if p.name not in _LAYOUT and not p.name.startswith(fs.TEMPORARY)]
    filled = [p.name for p in (run.journal, run.checkpoints, run.eval) if p.exists() and any(p.iterdir())]
    if foreign or filled:
        found = ", ".join(sorted(foreign + filled)[:5])
        raise RunBusyError(f"{run.path} is not a run of ours (no run.json) but holds {found}; choose another run.name")


def _compare(run: RunDir, record: Mapping[str, Any], resolved_config: str, fixed: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    refused = differences(record["fixed"], fixed)
    if refused:
        raise ConfigError(
            [
                f"{run.path} was started with other values of options that cannot change at resume "
                "(put them back, or choose another run.name):",
                *(f"  {line}" for line in refused),
            ]
        )
    if run.config.exists():
        try:
            stored = yaml.safe_load(run.config.read_bytes())
        except (yaml.YAMLError, ValueError) as error:  # as below: it is written again, and what may not change is in run.json
            run.notes.append(f"{run.config} is damaged ({str(error).splitlines()[0]}): changed options cannot be told")
        else:
            run.notes += [f"changed at resume: {line}" for line in differences(stored or {}, yaml.safe_load(resolved_config) or {})]
    if (run.path / "environment.json").exists():
        try:
            before = json.loads((run.path / "environment.json").read_bytes())
        except ValueError as error:  # nothing is computed from it, and it is written again
            run.notes.append(f"{run.path / 'environment.json'} is damaged ({error}): versions of the last start cannot be compared")
        else:
            run.notes += [f"not bit-exact: environment {line}" for line in differences({"threads": now["threads"], **(before or {})}, now)]


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); restore it, or choose another run.name") from error
    if not isinstance(record, dict) or not {"schema", "fixed", "history"} <= set(record):
        raise CheckpointError(f"{path}: not the record of a run; restore it, or choose another run.name")
    if record["schema"] > _SCHEMA:
        raise CheckpointError(f"{path}: written with run schema {record['schema']}, this version reads up to {_SCHEMA}; upgrade vlmrl")
    return record


def _write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_bytes() != text.encode():
        fs.write_text(path, text)


def _leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        parts = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, list | tuple) and value:
        parts = [(str(i), v) for i, v in enumerate(value)]
    else:
        return {prefix: list(value) if isinstance(value, tuple) else value}
    return {k: v for key, part in parts for k, v in _leaves(part, f"{prefix}.{key}" if prefix else key).items()}


@contextmanager
def locked(path: Path) -> Iterator[Callable[[], str | None]]:
    """Hold an exclusive `flock` on a file and on its folder; the file is never removed, since removing it would let two processes lock
    two files. Yields what tells why they are no longer the ones under their names (None while they are)."""
    with ExitStack() as opened:
        try:
            folder = opened.enter_context(_descriptor(path.parent, os.O_RDONLY | os.O_DIRECTORY))
            file = opened.enter_context(_descriptor(path, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise StorageError(f"{path}: cannot open the lock: {error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            whole = _lock_folder(folder)
        except BlockingIOError:
            holder = (
                os.pread(file, 1000, 0).decode(errors="replace").strip() or "a process that is just starting, or whose LOCK was deleted"
            )
            raise RunBusyError(f"{path.parent} is in use by {holder}; wait for it, stop it, or choose another run.name") from None
        except OSError as error:
            raise StorageError(f"{path}: this file system has no locks ({error}); put run.root on one that has") from error
        started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        os.ftruncate(file, 0)
        os.pwrite(file, f"host {socket.gethostname()}, pid {os.getpid()}, since {started}\n".encode(), 0)

        def lost() -> str | None:
            if not _is_under(path.parent, folder):
                return f"{path.parent} was moved, deleted or replaced"
            if not whole and not _is_under(path, file):
                return f"{path} was deleted or replaced"
            return None

        yield lost


@contextmanager
def _descriptor(path: Path, flags: int) -> Iterator[int]:
    """An open file or folder that forked children close."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    _locks.add(descriptor)
    try:
        yield descriptor
    finally:
        _locks.discard(descriptor)
        os.close(descriptor)


def _lock_folder(descriptor: int) -> bool:
    """Lock a folder; False where the file system cannot (NFS).

    Raises:
        BlockingIOError: another process holds it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _is_under(path: Path, descriptor: int) -> bool:
    """Whether a path leads to what is open under a descriptor."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _close_locks_in_child() -> None:
    """A forked worker shares the lock; if it outlived its parent, the run would stay locked. Closing does not unlock the parent."""
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_close_locks_in_child)


@contextmanager
def _signals(run: RunDir) -> Iterator[None]:
    """The first SIGTERM or SIGINT asks for a stop at the next step boundary, the second exits at once (no file is half-written).

    Python delivers signals to the main thread only; elsewhere (a run driven from a thread) the handlers stay as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if run.stop_requested:
            os._exit(128 + number)
        run.stop_signal = signal.Signals(number).name

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
