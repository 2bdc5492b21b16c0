"""RunState: everything of a run that must survive a crash and cannot be recomputed. What is not here is a function of it.

Weights and optimizer moments are tensors of the checkpoint; the rest is JSON. There is no random state: draws are functions of
coordinates (`rng`). Loading is strict: a missing or unknown key is an error, not a default. The saved keys are the dataclass's fields,
and a new stage starts from a fresh `StageState`, so a field that is added is saved and reset without being named again.

`UsedMedia` is the one thing that is too large for a checkpoint: the key of every medium that was used, in an append-only file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl import fs
from vlmrl.errors import CheckpointError
from vlmrl.sampling.ledger import Ledger
from vlmrl.types import MediaRef

if TYPE_CHECKING:
    from vlmrl.data.encode import MediaSource


@dataclass(kw_only=True)
class StageState:
    """State of the current stage: the next one starts from a fresh one."""

    step: int = 0
    """Finished optimizer steps of the current stage."""
    skipped_in_row: int = 0
    """Updates refused in a row because loss or gradient was not finite."""
    empty_in_row: int = 0
    """Steps in a row without any trainable row."""
    held_out_score: float | None = None
    """The last one that the stage's `until` has seen."""
    without_signal: int = 0
    """Steps in which no group had answers that differ in worth."""
    verdicts: dict[str, int] = field(default_factory=dict)
    """Reward -> rollouts that it has scored; one that has scored none has 0."""
    max_tokens_per_microbatch: int | None = None
    """Token budget after out-of-memory halvings; None: the recipe's."""
    bad_media: dict[str, str] = field(default_factory=dict)
    """Sample id -> reason, for samples whose media failed during training."""
    memories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Part -> what it remembers (`train.memory`): sampler, reward runner, strategy, constraints, methods; tensors apart."""


@dataclass(kw_only=True)
class RunState(StageState):
    """See the module docstring."""

    stage: int = 0
    """Index of the current stage in the recipe."""
    global_step: int = 0
    """Finished optimizer steps of the run; names checkpoints and journals."""
    policy_version: int = 0
    """Applied weight updates."""
    ledger: Ledger = field(default_factory=Ledger)

    def start_stage(self, index: int) -> None:
        """Move to the next stage: counters of the stage start again, the run's go on."""
        self.stage = index
        fresh = StageState()  # by its fields, so that one that is added later is reset too
        for one in fields(StageState):
            setattr(self, one.name, getattr(fresh, one.name))

    def state_dict(self) -> dict[str, Any]:
        """Collect every field by name; a `Ledger` as its own state."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value.state_dict() if isinstance(value, Ledger) else value for name, value in values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave.

        Raises:
            CheckpointError: keys are missing or unknown; names them.
        """
        expected = {one.name for one in fields(self)}
        if set(state) != expected:
            raise CheckpointError(
                f"run state: missing keys {sorted(expected - set(state))}, unknown keys {sorted(set(state) - expected)}; "
                "the checkpoint was written by another version"
            )
        for name, value in state.items():
            part = getattr(self, name)
            if isinstance(part, Ledger):
                part.load_state_dict(value)
            else:
                setattr(self, name, value)


# ---- media that were used ----------------------------------------------------------------------------------------------

_RANK = re.compile(r"media\.rank-(\d+)\.log")
_KEY = 32
"""Characters kept of a key."""


class UsedMedia:
    """Every medium that the run has used, by the key of its content and processing (`MediaHandle.key`), each once.

    A medium that is used again must have the key that it had, also after a restart. One file per rank, `inputs/media.rank-0.log`, with a
    line `<crc32> <key> <path>` per medium; every rank reads the files of all when it starts, since the next start may deal rows otherwise.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int = 0,
        data_root: Path = Path(),
        accept: bool = False,
        note: Callable[[str], None] = lambda _: None,
        saved: Mapping[str, Any] | None = None,
    ):
        """Read what is there.

        Args:
            folder: `inputs` of the run directory.
            data_root: paths are kept relative to it, so that data may be moved.
            accept: go on with a medium that changed, and `note` it (`data.changed`).
            saved: what `state_dict` gave when the last checkpoint was saved.

        Raises:
            CheckpointError: a file is damaged or shorter than it was at the last checkpoint.
        """
        self.path = folder / f"media.rank-{rank}.log"
        self._root, self._accept, self._note = data_root, accept, note
        self._keys: dict[str, str] = {}
        self._prefixes: dict[Path, str] = {}
        fs.mkdir(folder)
        found = {path.name: path for path in sorted(folder.iterdir()) if _RANK.fullmatch(path.name)}
        for name in sorted(set(found) | set(saved or {})):
            raw = found[name].read_bytes() if name in found else b""
            # of the part that the checkpoint has seen; lines that came later have only their own sums
            length, content = (saved or {}).get(name, (0, hashlib.sha256().hexdigest()))
            if hashlib.sha256(raw[:length]).hexdigest() != content:
                raise CheckpointError(
                    f"{folder / name}: missing, cut, or its content differs from what the last checkpoint knows: the media that were used "
                    "cannot be compared; restore it, or choose another run.name"
                )
            good = self._read(folder / name, raw)
            if name == self.path.name and good < len(raw):  # each rank cuts its own file alone
                fs.truncate(self.path, good)

    def of(self, store: MediaSource, label: str = "") -> WatchedMedia:
        """Wrap a store so that its media are compared and remembered. `label` separates stores that process the same files otherwise."""
        return WatchedMedia(self, store, label)

    def see(self, ref: MediaRef, root: Path, key: str, label: str) -> None:
        """Compare a medium with its former use, or remember it.

        Raises:
            CheckpointError: its key is another one, and this is not accepted.
        """
        # relative to the data, so that the folder may be moved; found once, since every medium of a source asks
        if root not in self._prefixes:
            self._prefixes[root] = os.path.relpath(root, self._root)
        name, short = f"{label}{self._prefixes[root]}/{ref.path}", key[:_KEY]
        before = self._keys.get(name)
        if before == short:
            return
        if before is not None:
            what = f"{root / ref.path}: the content of this medium, or how it is decoded, is not what it was when the run used it before"
            if not self._accept:
                raise CheckpointError(
                    f"{what}; put the file back (or the version of vlmrl), or choose another run.name; data.changed: accept goes on with "
                    "the file as it is now"
                )
            self._note(f"data.changed: accept: {what}")
        self._keys[name] = short
        payload = f"{short} {json.dumps(name)}".encode()
        fs.append(self.path, b"%08x %s\n" % (zlib.crc32(payload), payload))

    def state_dict(self) -> dict[str, list[Any]]:
        """Describe every file by its length and sha256: for a checkpoint, which is saved after every rank has called `sync`."""
        out: dict[str, list[Any]] = {}
        for path in sorted(self.path.parent.iterdir()):
            if _RANK.fullmatch(path.name):
                raw = path.read_bytes()
                out[path.name] = [len(raw), hashlib.sha256(raw).hexdigest()]
        return out

    def sync(self) -> None:
        """Make this rank's file durable."""
        if self.path.exists():
            fs.sync(self.path)
            fs.fsync_dir(self.path.parent)

    def _read(self, path: Path, raw: bytes) -> int:
        """Take in the whole lines of a file, and return where they end. A torn last line was being written when a process died."""
        good = raw.rfind(b"\n") + 1
        for number, line in enumerate(raw[:good].splitlines(), start=1):
            check, _, payload = line.partition(b" ")
            key, _, name = payload.partition(b" ")
            if check != b"%08x" % zlib.crc32(payload):
                raise CheckpointError(f"{path}:{number}: damaged; restore the file, or choose another run.name")
            self._keys[json.loads(name)] = key.decode()
        return good


@dataclass(frozen=True)
class WatchedMedia:
    """A media store that compares what it gives with what was given before."""

    used: UsedMedia
    store: MediaSource
    label: str

    def get(self, ref: MediaRef, root: Path) -> Any:
        """Give a medium as the store does, once it is compared.

        Raises:
            CheckpointError: the medium changed since the run used it.
        """
        entry = self.store.get(ref, root)
        self.used.see(ref, root, entry.handle.key, self.label)
        return entry

    def plan(self, ref: MediaRef, root: Path) -> Any:
        return self.store.plan(ref, root)
