"""Metrics: `metrics.jsonl` in the run directory is the record; accelerate's trackers get a copy.

One line per call of `log`. Fields that depend on the process are `wall` and those of `PROCESS_FIELDS`; all others are equal, byte
for byte, in a run that was killed and resumed, because `truncate` cuts the file to the length that the checkpoint stored.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmrl import fs
from vlmrl.errors import CheckpointError, VlmrlError
from vlmrl.evals.score.runfiles import read_metrics as read_metrics
from vlmrl.run.optional import OPTIONAL

if TYPE_CHECKING:
    from vlmrl.config.schema import Config
    from vlmrl.config.train import TrackerSection

Value = float | int | str | bool
Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""(Names of the columns, rows)."""
_OWN = ("stage", "step", "global_step", "wall")
Mark = list[Any]
"""[end of a part in bytes, hash of the part]"""
MOST_MARKS = 400
"""Parts of the metrics file that a checkpoint tells apart."""


class Tracker:
    """Writes metrics of one run. On ranks other than 0 it checks nothing and writes nothing."""

    def __init__(
        self, run_path: Path, trackers: Sequence[str | TrackerSection] = (), is_main: bool = True, *, recipe: Config | None = None
    ):
        """Check that every tracker named is known and installed; they start at the first `log`, or at `start`.

        Args:
            recipe: what the trackers get as the run's config.

        Raises:
            ConfigError: unknown or missing trackers, with the command that installs them.
        """
        self.path = run_path / "metrics.jsonl"
        self._run_path = run_path
        self._is_main = is_main
        self._recipe = recipe
        self._waiting: list[Callable[..., Any]] = OPTIONAL["run.trackers"](trackers) if is_main and trackers else []
        self._marks: list[Mark] = []
        self._trackers: list[Any] = []

    def start(self, global_step: int) -> None:
        """Start the trackers, so that a wrong login fails now and not after the first step.

        Args:
            global_step: the first that will be logged; TensorBoard hides what an interrupted run logged from there on.

        Raises:
            ConfigError: a tracker did not start.
        """
        try:
            for begin in self._waiting:
                self._trackers.append(begin(self._run_path, self._recipe, global_step))
        except VlmrlError:
            self.close()
            raise
        self._waiting = []

    def log(self, values: Mapping[str, Value], *, stage: str, step: int, global_step: int) -> None:
        """Append one line.

        Args:
            values: names such as `loss/policy`; numbers (also non-finite ones), texts or booleans.
            step: within the stage; global_step: within the run, the axis of the trackers.

        Raises:
            TypeError, ValueError: a value of another type, or a name that is one of ours.
            StorageError: the disk refused; the file then ends with the line before.
        """
        if not self._is_main:
            return
        self.start(global_step)
        own: dict[str, Value] = {"stage": stage, "step": step, "global_step": global_step, "wall": time.time()}
        taken = sorted(set(values) & set(own))
        if taken:
            raise ValueError(f"metric names {taken} are reserved")
        line = {key: _encoded(key, value) for key, value in {**values, **own}.items()}
        fs.append(self.path, json.dumps(line, sort_keys=True, allow_nan=False).encode() + b"\n")
        for tracker in self._trackers:
            tracker.log(dict(values), step=global_step)

    def table(self, name: str, table: Table, *, global_step: int) -> None:
        """Send a table of texts to the trackers that take one (`keep.table`); the metrics file has none."""
        if not self._is_main:
            return
        self.start(global_step)
        for tracker in self._trackers:
            OPTIONAL["keep.table"](tracker, name, table, global_step)

    def mark(self) -> tuple[int, list[Mark]]:
        """(Length of the metrics file in bytes, hashes of its parts), to be stored in a checkpoint; what they cover is durable first.

        A part reaches from one checkpoint to the next, so that damage is found with the lines that it is in.
        """
        if self._is_main and self.path.exists():
            fs.sync(self.path)
            fs.fsync_dir(self.path.parent)
        length = fs.length(self.path)
        begin = self._marks[-1][0] if self._marks else 0
        if length > begin:
            self._marks.append([length, _hash(self.path, begin, length)])
        if len(self._marks) > MOST_MARKS:  # join the first half in pairs: what is long past is told less exactly
            half = len(self._marks) // 2
            ends = [self._marks[i][0] for i in range(1, half, 2)]
            joined = [[end, _hash(self.path, start, end)] for start, end in zip([0, *ends], ends, strict=False)]
            self._marks = [*joined, *self._marks[len(joined) * 2 :]]
        return length, [list(mark) for mark in self._marks]

    def restore(self, offset: int, marks: Sequence[Mark] | None, note: Callable[[str], None]) -> None:
        """Cut the file to a checkpoint's offset (`truncate`) and compare what is left with the hashes of its parts.

        Damage is told with the lines that it is in, and the run goes on: nothing is computed from metrics. From then on the file is
        taken as it is now.

        Args:
            marks: None, where the checkpoint is of a version without them.

        Raises:
            CheckpointError: as `truncate`.
        """
        self.truncate(offset)
        if not self._is_main:
            return
        begin = 0
        for end, content in marks or ():
            found = _hash(self.path, begin, end)
            if found != content:
                raw = self.path.read_bytes()
                first, last = raw[:begin].count(b"\n") + 1, raw[:end].count(b"\n")
                note(f"warning: {self.path}: lines {first} to {last} are not as they were written; they are left as they are now")
            self._marks.append([end, found])
            begin = end

    def truncate(self, offset: int) -> None:
        """Cut the file to a checkpoint's offset: lines of steps that will be computed again would be duplicates.

        Raises:
            CheckpointError: the file is shorter, so it is not the one that the checkpoint belongs to.
        """
        if not self._is_main:
            return
        length = fs.length(self.path)
        if length < offset:
            raise CheckpointError(
                f"{self.path} has {length} bytes but the checkpoint was saved at {offset}: lines were removed; restore it"
            )
        if length > offset:
            fs.truncate(self.path, offset)
            fs.sync(self.path)

    def close(self) -> None:
        """Flush and end the trackers."""
        for tracker in self._trackers:
            tracker.finish()
        self._trackers = []


def _hash(path: Path, begin: int, end: int) -> str:
    """Of the bytes from `begin` to `end`."""
    with open(path, "rb") as file:
        file.seek(begin)
        return hashlib.sha256(file.read(end - begin)).hexdigest()[:32]


PROCESS_FIELDS = ("time/", "memory/", "resume/", "work/", "cache/", "judge/", "reward/wait_")
"""Prefixes of fields that depend on the clock, on memory, on how often a run was resumed, on how warm its caches are, or on a service."""


def without_clock(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the fields that depend on the process: what must be equal between two runs of one recipe."""
    return [{key: value for key, value in row.items() if key != "wall" and not key.startswith(PROCESS_FIELDS)} for row in rows]


def _encoded(key: str, value: Any) -> Value:
    """A JSON value; NaN and infinities, which JSON lacks, by name."""
    if isinstance(value, bool | int | str):
        return value
    if not isinstance(value, float):
        raise TypeError(f"metric '{key}' is {type(value).__name__} {value!r}; use a float, int, str or bool (`.item()` of a tensor)")
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(value)
