"""What a page reads of one run or evaluation, followed while it grows: metrics, records, kept groups and pixels. Reads only.

Everything is read once and again only where its file has changed. A file that is a link out of the folder is refused.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.score.recipes import recipe_seed
from vlmrl.evals.score.records import Record, read_verified
from vlmrl.evals.score.runfiles import EvalResults, read_eval, read_metrics
from vlmrl.extras.pages.kept.asked import PROMPTS, QUESTIONS, read_lines
from vlmrl.extras.pages.kept.media import path_of
from vlmrl.extras.pages.kept.read import MEDIA, KeptGroups, rank_folders
from vlmrl.run.listing import RunLine, line_of, mapping, stage_of

T = TypeVar("T")
Kind = Literal["run", "evaluation", "comparison", "check"]
READ = ["run.json", "config.yaml", "LOCK", "metrics.jsonl", "eval", "eval/frames", "environment.json", "groups", "summary.json", "frames"]
"""What is read of a folder beside records and kept groups."""


_OWN = ("stage", "step", "global_step", "wall")

Points = dict[int, float]
"""Global step -> value."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """`metrics.jsonl` by step."""

    columns: dict[str, Points] = field(default_factory=dict[str, Points])
    """By name, the newest value of each step; only finite numbers."""
    stages: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """The first and the last global step of each stage, in order; not what else lines are about (`listing.stage_of`)."""
    walls: Points = field(default_factory=Points)
    """When the first line of a step was written, in seconds since 1970."""

    def take(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Take in lines that came after those before."""
        for line in lines:
            stage, step = stage_of(line), line.get("global_step")
            if not isinstance(step, int):
                continue
            if stage is not None:
                self.stages[stage] = self.stages.get(stage, (step, step))[0], step
            if isinstance(line.get("wall"), int | float):
                self.walls.setdefault(step, float(line["wall"]))
            if line.get("stage") == "run":
                continue  # about the whole run, when it has ended: its numbers are those of no step
            for name, value in line.items():
                if name not in _OWN and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                    self.columns.setdefault(name, {})[step] = float(value)


class Forbidden(StorageError):
    """A path leads out of the folder that is shown."""


class Source:
    """Something to look at: a run, an evaluation, a comparison or a data check.

    Args:
        name: its name in addresses.
        strict: a damaged file of records is an error; else it is a problem that the page says, and the rest is shown.
    """

    def __init__(self, path: Path, name: str, kind: Kind, *, strict: bool = False):
        self.path, self.name, self.kind, self.strict = path.resolve(), name, kind, strict
        self.kept = KeptGroups(self.path / "groups")
        self.frames = self.path / "frames" if kind == "evaluation" else self.path / "eval" / "frames"
        """What evaluations kept of questions."""
        self.refused = False
        """Whether something of it is a link out of its folder; it is not read then."""
        self.problems: list[str] = []
        self._known: dict[str, tuple[Any, Any]] = {}
        self._lines: list[dict[str, Any]] = []
        self._metrics = Metrics()
        self._size = 0

    def follow(self) -> tuple[Any, ...]:
        """Take in what was written since the last call. Returns a stamp: another one where something is new."""
        ranks = rank_folders(self.kept.path).values()
        links = [Path(entry) for rank in ranks for entry in os.scandir(rank) if entry.is_symlink()]
        self.refused = not all(self._inside(path) for path in (*(self.path / name for name in READ), *ranks, *links))
        if self.refused:
            return ()
        self.kept.follow()
        written = [_stat(self.path / name) for name in ("metrics.jsonl", "eval/order.json")]
        return self.kept.version, written, self.line.status if self.kind == "run" else ""

    def confined(self, path: Path) -> Path:
        """The path, if it is inside of the folder, links followed; else `Forbidden`."""
        if not self._inside(path):
            raise Forbidden(f"{path}: a link out of {self.path}")
        return path

    def _inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.path)

    def once(self, name: str, stamp: Any, make: Callable[[], T]) -> T:
        """What was made under a name, while its stamp is the same; None is a stamp of nothing that may be kept."""
        if stamp is None or self._known.get(name, (None, None))[0] != stamp:
            self._known[name] = stamp, make()
        return self._known[name][1]

    @property
    def line(self) -> RunLine:
        """Where the run is."""
        stamps = [_stat(self.path / name) for name in ("run.json", "config.yaml", "LOCK", "FINISHED", "metrics.jsonl")]
        return self.once("line", stamps if (self.path / "FINISHED").exists() else None, lambda: line_of(self.path))

    @property
    def config(self) -> dict[str, Any]:
        """The recipe; nothing where it cannot be read, which `line` says."""
        return self.once("config", _stat(self.path / "config.yaml"), lambda: mapping(self.path / "config.yaml", []))

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        """The stages of the recipe, by name."""
        listed: Any = self.config.get("stages") or []
        return {stage["name"]: stage for stage in listed if isinstance(stage, dict) and isinstance(stage.get("name"), str)}

    @property
    def seed(self) -> int:
        """Of every interval that is shown of it."""
        return recipe_seed(self.config)

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and machine."""
        path = self.path / "environment.json"
        return json.loads(path.read_bytes()) if path.is_file() else {}

    @cached_property
    def evaluation(self) -> EvalResults:
        """Of an evaluation: its records and what was asked."""
        return read_eval(self.path)

    @property
    def records(self) -> dict[str, list[Record]]:
        """Of a run its held-out evaluations by stage, in their order; of an evaluation its tasks. Those without an answer are left out."""
        if self.kind == "evaluation":
            return {name: rows for name, rows in self.evaluation.records.items() if rows}
        return {name: rows for name in self.evaluations for rows in [self.records_of(name)] if rows}

    @property
    def evaluations(self) -> list[str]:
        """The stages of a run that were evaluated, in their order."""
        file = self.path / "eval" / "order.json"
        try:
            return [str(name) for name in json.loads(file.read_bytes())] if file.is_file() else []
        except (ValueError, TypeError) as error:
            raise StorageError(f"{file}: not a list of stages: {error}") from error

    def records_of(self, name: str) -> list[Record]:
        """The answers of a run's evaluation after a stage."""
        return self._rows(self.confined(self.path / "eval" / f"{name}.jsonl"), read_verified)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        return self._rows(path, self._grown) if path.is_file() else []

    @property
    def metrics(self) -> Metrics:
        """Those lines by step."""
        return self._metrics if self.lines else Metrics()

    def _grown(self, path: Path) -> list[dict[str, Any]]:
        """The lines, of which only those are read that came since the last call."""
        if path.stat().st_size < self._size:  # resumed from an earlier step
            self._lines, self._metrics = [], Metrics()
        self._size = path.stat().st_size
        new = read_metrics(path, len(self._lines))
        self._metrics.take(new)
        self._lines = [*self._lines, *new]
        return self._lines

    def _rows(self, path: Path, read: Callable[[Path], list[T]]) -> list[T]:
        def rows() -> list[T]:
            try:
                return read(path)
            except (StorageError, ConfigError) as error:
                if self.strict:
                    raise
                self.problems.append(str(error))
                return []

        return self.once(str(path), _stat(path), rows)

    @property
    def prompts(self) -> dict[str, dict[str, Any]]:
        """`Record.prompt_ids_hash` -> the prompt as the model saw it (`prompt`)."""
        path = self.frames / PROMPTS
        return self.once("prompts", _stat(path), lambda: read_lines(path))

    @property
    def asked(self) -> dict[str, dict[str, Any]]:
        """`Record.sample_hash` -> what was kept of the question (`kept.asked`)."""
        path = self.frames / QUESTIONS
        return self.once("asked", _stat(path), lambda: read_lines(path))

    def medium(self, key: str) -> Path | None:
        """The file of a medium, of a held-out question or of a kept group; None where it was not kept."""
        folders = (self.frames, *rank_folders(self.kept.path).values())
        path = next((path for folder in folders if (path := path_of(folder / MEDIA, key)).is_file()), None)
        return None if path is None else self.confined(path)


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def unique(names: Sequence[str]) -> list[str]:
    """Names that are different, and fit into an address: characters that do not are replaced, and a number tells equal ones apart."""
    out: list[str] = []
    for name in names:
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in name)[:60] or "item"
        number, chosen = 2, plain
        while chosen in out:
            chosen, number = f"{plain}-{number}", number + 1
        out.append(chosen)
    return out
