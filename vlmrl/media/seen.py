"""Remembers what was found of each medium of one audit: its handle or its fault, and the state of its file. No medium is opened twice,
whichever of several processes meets it: they share a table in a file that lasts as long as the audit.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vlmrl.errors import MediaError
from vlmrl.media.places import seen_place
from vlmrl.types import MediaHandle, MediaRef

Look = Callable[[MediaRef, Path], MediaHandle]
_HELD = 50_000
"""Media of which a process remembers the outcome by itself; those met first make way."""
_PATIENCE = 60.0
"""Seconds to wait while another process writes."""


class PlanCache:
    """`plan` is that of a media store, with each medium looked at once. `shared`: file of the table. One per process."""

    def __init__(self, look: Look, shared: Path):
        self._look = look
        self._held: dict[tuple[Path, MediaRef], tuple[str, MediaHandle | MediaError]] = {}
        self._table = sqlite3.connect(shared, timeout=_PATIENCE, isolation_level=None)
        self._table.execute("PRAGMA journal_mode = WAL")
        self._table.execute("PRAGMA synchronous = OFF")  # it does not outlive the audit
        self._table.execute("CREATE TABLE IF NOT EXISTS seen (medium BLOB PRIMARY KEY, found TEXT) WITHOUT ROWID")
        self.used: dict[tuple[Path, MediaRef], str] = {}
        """Media asked for since `begin`, with the states of their files."""

    def begin(self) -> None:
        """Forget which media were asked for."""
        self.used = {}

    def close(self) -> None:
        """Close the table."""
        self._table.close()

    def plan(self, ref: MediaRef, root: Path) -> MediaHandle:
        """Plan a medium, or answer from what was found of it before.

        Raises:
            MediaError: what looking at it found.
        """
        key = (root, ref)
        entry = self._held.get(key)
        if entry is None:
            entry = self._shared(ref, root)
            if len(self._held) >= _HELD:
                del self._held[next(iter(self._held))]
            self._held[key] = entry
        state, found = entry
        self.used[key] = state
        if isinstance(found, MediaError):
            raise MediaError(found.reason, str(found).removeprefix(f"{found.reason}: "))
        return found

    def _shared(self, ref: MediaRef, root: Path) -> tuple[str, MediaHandle | MediaError]:
        name = hashlib.blake2b(json.dumps([str(root), to_json(ref)]).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        row = self._table.execute("SELECT found FROM seen WHERE medium = ?", (name,)).fetchone()
        if row is not None:
            state, handle, fault = json.loads(row[0])
            return state, MediaError(*fault) if handle is None else _handle(handle)
        # before looking: a file that changes meanwhile then has another state than the one stored, which shows that it changed
        state = state_of(ref, root)
        try:
            found = self._look(ref, root)
            text = json.dumps([state, asdict(found), None])
        except MediaError as error:
            found, message = error, str(error).removeprefix(f"{error.reason}: ")
            text = json.dumps([state, None, [error.reason, message]])
        # another process may have looked at it in the same moment; both found the same
        self._table.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (name, text))
        return state, found


def state_of(ref: MediaRef, root: Path) -> str:
    """Hash path, size and time of modification of a medium's file or files: while the hash stays, so does what is found of it.

    Returns:
        16 hexadecimal digits.
    """
    try:
        place: Any = seen_place(ref, root)
    except MediaError as error:
        place = str(error)
    return hashlib.blake2b(repr(place).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def to_json(ref: MediaRef) -> list[Any]:
    """Write a reference as JSON values."""
    if not ref.as_frames:
        return [ref.kind, ref.path, ref.sha256]
    return [ref.kind, ref.path, ref.sha256, [to_json(frame) for frame in ref.frames], ref.times, ref.fps]


def from_json(values: Sequence[Any]) -> MediaRef:
    """Read the reference that `to_json` wrote."""
    kind, path, sha256, *more = values
    if not more:
        return MediaRef(kind=kind, path=path, sha256=sha256)
    frames, times, fps = more
    stamps = None if times is None else tuple(times)
    return MediaRef(kind=kind, path=path, sha256=sha256, frames=tuple(map(from_json, frames)), times=stamps, fps=fps)


def _handle(values: dict[str, Any]) -> MediaHandle:
    steps = values["step_times"]
    return MediaHandle(**{**values, "grid_thw": tuple(values["grid_thw"]), "step_times": None if steps is None else tuple(steps)})
