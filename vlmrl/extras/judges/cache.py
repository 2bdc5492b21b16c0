"""The cache of verdicts, by content hash: a JSON-lines file per process under the run, so that no question is asked twice after a crash.

A line is `{"crc": "<8 hex>", "key": ..., "verdict": {...}}`, the checksum being over the rest in canonical form. What a crash tore off
at the end is cut away when the file is opened; a damaged line in the middle is left out and counted, since it only costs a question.
Lines are durable within a second of the next one, and at `close`; those lost in a power cut are asked again.
"""

from __future__ import annotations

import json
import re
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vlmrl import fs

SYNC_SECONDS = 1.0
_NAME = re.compile(r"verdicts\.rank-\d+\.jsonl")


class VerdictCache:
    """Verdicts of all processes that wrote into `folder` before now; new ones go to this rank's file. Without a folder: in memory only.

    Attributes:
        dropped_bytes: length of the torn tail that was cut off this rank's file.
        damaged: lines left out, in all files.
    """

    def __init__(self, folder: Path | None, rank: int = 0, *, clock: Callable[[], float] = time.monotonic):
        """Raises StorageError if the disk refuses. The folder is made with the first verdict."""
        self.dropped_bytes = 0
        self.damaged = 0
        self.path = None if folder is None else folder / f"verdicts.rank-{rank}.jsonl"
        self._verdicts: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._clock = clock
        self._synced = clock()
        self._unsynced = False
        if folder is not None and folder.exists():  # a run without judges has no such folder: `put` makes it
            for path in sorted(p for p in folder.iterdir() if _NAME.fullmatch(p.name)):
                self._load(path)

    def __len__(self) -> int:
        with self._lock:
            return len(self._verdicts)

    def get(self, key: str) -> dict[str, Any] | None:
        with self._lock:
            found = self._verdicts.get(key)
            return None if found is None else dict(found)

    def put(self, key: str, verdict: Mapping[str, Any]) -> None:
        """Keep a verdict (JSON values; no NaN). A key that is there already keeps its first verdict.

        Raises:
            StorageError: the disk refused; the file then ends with the line before.
        """
        line = _line(key, verdict)
        with self._lock:
            if key in self._verdicts:
                return
            if self.path is not None:
                new = not self.path.exists()
                if new:
                    fs.mkdir(self.path.parent)
                fs.append(self.path, line)
                self._unsynced = True
                if new:
                    fs.fsync_dir(self.path.parent)
                if self._clock() - self._synced >= SYNC_SECONDS:
                    self._sync()
            self._verdicts[key] = json.loads(line)["verdict"]

    def close(self) -> None:
        """Make everything durable."""
        with self._lock:
            self._sync()

    def _sync(self) -> None:
        if self.path is not None and self._unsynced:
            fs.sync(self.path)
            self._unsynced = False
            self._synced = self._clock()

    def _load(self, path: Path) -> None:
        raw = path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if path == self.path and whole < len(raw):
            self.dropped_bytes = len(raw) - whole
            fs.truncate(path, whole)
        for line in raw[:whole].splitlines():
            found = _read(line)
            if found is None:
                self.damaged += 1
            else:
                self._verdicts.setdefault(*found)


def _line(key: str, verdict: Mapping[str, Any]) -> bytes:
    body = _canonical(key, verdict)
    return b'{"crc": "%08x", ' % zlib.crc32(body) + body[1:] + b"\n"


def _canonical(key: str, verdict: Mapping[str, Any]) -> bytes:
    return json.dumps({"key": key, "verdict": dict(verdict)}, sort_keys=True, allow_nan=False).encode()


def _read(line: bytes) -> tuple[str, dict[str, Any]] | None:
    """(key, verdict); None for a damaged line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or set(record) != {"crc", "key", "verdict"}:
        return None
    crc, key, verdict = record["crc"], record["key"], record["verdict"]
    if not isinstance(key, str) or not isinstance(verdict, dict):
        return None
    try:
        body = _canonical(key, verdict)
    except ValueError:  # NaN
        return None
    return (key, verdict) if crc == f"{zlib.crc32(body):08x}" else None
