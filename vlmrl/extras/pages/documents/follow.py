"""The metrics of a run, followed while it trains: what was appended is read, and a file that was cut (a resumed run) is read anew."""

from __future__ import annotations

import json
import math
from pathlib import Path

from vlmrl.run.listing import stage_of

_OWN = ("stage", "step", "global_step", "wall")


class MetricsFollower:
    """Columns of `metrics.jsonl` by name, as (global step, value). Only numbers; lines that are no JSON object, and the values of the line
    about the whole run, are skipped."""

    def __init__(self, path: Path):
        self.path = path
        self.columns: dict[str, tuple[list[int], list[float]]] = {}
        self.stages: list[tuple[str, int]] = []
        """(stage, global step of its first line), in order; not what else lines are about (`listing.stage_of`)."""
        self.walls: dict[int, float] = {}
        """Global step -> when its line was written, in seconds since 1970."""
        self.ends: dict[str, int] = {}
        """Stage -> global step of its newest line."""
        self.size = 0
        """Bytes that were read."""

    def follow(self) -> None:
        """Take in what was written since the last call."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size < self.size:
            self.columns, self.stages, self.walls, self.ends, self.size = {}, [], {}, {}, 0
        if size == self.size:
            return
        with self.path.open("rb") as file:
            file.seek(self.size)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.size += len(whole)
        for line in whole.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            row = json.loads(line)
        except ValueError:
            return
        if not isinstance(row, dict) or not isinstance(row.get("global_step"), int):
            return
        stage, step = stage_of(row), row["global_step"]
        if stage is not None and stage not in [name for name, _ in self.stages]:
            self.stages.append((stage, step))
        if stage is not None:
            self.ends[stage] = step
        if isinstance(row.get("wall"), int | float):
            self.walls.setdefault(step, float(row["wall"]))
        if row.get("stage") == "run":
            return  # about the whole run, when it has ended: its numbers are those of no step
        for name, value in row.items():
            if name in _OWN or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            steps, values = self.columns.setdefault(name, ([], []))
            steps.append(step)
            values.append(float(value))
