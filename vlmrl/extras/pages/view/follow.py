"""The metrics of a run, followed while it trains: what was appended is read, and a file that was cut (a resumed run) is read anew."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vlmrl.run.listing import stage_of

_OWN = ("stage", "step", "global_step", "wall")


class MetricsFollower:
    """Columns of `metrics.jsonl` by name, as (global step, value). Only numbers; lines that are no JSON object are skipped."""

    def __init__(self, path: Path):
        self.path = path
        self.columns: dict[str, tuple[list[int], list[float]]] = {}
        self.stages: list[tuple[str, int]] = []
        """(stage, global step of its first line), in order; not what else lines are about (`listing.stage_of`)."""
        self.last: dict[str, Any] = {}
        """The newest line."""
        self._read = 0

    def follow(self) -> None:
        """Take in what was written since the last call."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size < self._read:
            self.columns, self.stages, self.last, self._read = {}, [], {}, 0
        if size == self._read:
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
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
        self.last = row
        for name, value in row.items():
            if name in _OWN or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            steps, values = self.columns.setdefault(name, ([], []))
            steps.append(step)
            values.append(float(value))

    def curves(self, names: Sequence[str], points: int) -> dict[str, dict[str, list[float]]]:
        """At most about `points` points of each column that there is: means over equal stretches of its lines."""
        return {name: thinned(*self.columns[name], points) for name in names if name in self.columns}


def thinned(steps: Sequence[int], values: Sequence[float], points: int) -> dict[str, list[float]]:
    """`x` and `y` of a curve; beyond `points` each is the mean of a stretch, the last stretch may be shorter."""
    size = -(-len(steps) // max(1, points))
    if size <= 1:
        return {"x": list(steps), "y": list(values)}
    parts = [(i, min(len(steps), i + size)) for i in range(0, len(steps), size)]
    return {"x": [sum(steps[a:b]) / (b - a) for a, b in parts], "y": [sum(values[a:b]) / (b - a) for a, b in parts]}
