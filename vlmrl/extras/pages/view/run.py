"""What the viewer tells of one run: its state, curves, kept groups by pages and filters, and one group whole. Reads only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError, StorageError
from vlmrl.extras.pages.kept import media
from vlmrl.extras.pages.kept.read import rank_folders
from vlmrl.extras.pages.view.follow import MetricsFollower
from vlmrl.extras.pages.view.groups import KeptGroups
from vlmrl.run.listing import is_run, line_of

FILES = ("run.json", "config.yaml", "LOCK", "metrics.jsonl")
"""What is read of a run beside its kept groups."""
MOST = 100
"""Groups of a page."""
SEEN_SAME = 2000
"""Groups of one question that are listed."""

SORTS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "surprise": lambda e: -(e["surprise"] or 0.0),
    "newest": lambda e: -e["global_step"],
    "oldest": lambda e: e["global_step"],
    "best": lambda e: -_or(e["reward"], float("-inf")),
    "worst": lambda e: _or(e["reward"], float("inf")),
    "spread": lambda e: -_or(e["spread"], -1.0),
    "longest": lambda e: -e["tokens"],
    "unlikely": lambda e: _or(e["logp"], 0.0),
}
"""Orders of a list of groups."""

FILTERS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "signal": lambda e: bool(e["spread"]),
    "alike": lambda e: e["spread"] == 0,
    "cut": lambda e: e["cut"] > 0,
    "helped": lambda e: e["provenance"] != ["policy"],
    "unused": lambda e: e["used"] < e["answers"],
    "unjudged": lambda e: e["reward"] is None,
}
"""What a list of groups may be restricted to."""


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


class Forbidden(Exception):
    """A path leads out of the run."""


class RunView:
    """One run folder. Its methods may be called from several threads."""

    def __init__(self, path: Path):
        """
        Raises:
            ConfigError: not a run directory.
        """
        if not is_run(path):
            raise ConfigError(f"{path}: not a run directory (no run.json and config.yaml); give the folder <run.root>/<run.name>")
        self.path = path.resolve()
        self._lock = threading.Lock()
        self._metrics = MetricsFollower(self.path / "metrics.jsonl")
        self._kept = KeptGroups(self.path / "groups")

    def confined(self, path: Path) -> Path:
        """
        Raises:
            Forbidden: the path is not inside the run, links followed.
        """
        if not path.resolve().is_relative_to(self.path):
            raise Forbidden
        return path

    def state(self) -> dict[str, Any]:
        """Where the run is, and what there is to see."""
        with self._lock:
            self._follow()
            line = line_of(self.path)
            tasks = sorted({entry["task"] for _, entry in self._kept.entries()})
            steps = sorted({(entry["global_step"], entry["stage"], entry["step"]) for _, entry in self._kept.entries()})
            return {
                "name": self.path.name,
                "status": line.status,
                "stage": line.stage,
                "step": line.step,
                "steps": line.steps,
                "wall": line.wall,
                "model": line.model,
                "problem": line.problem,
                "metrics": sorted(self._metrics.columns),
                "stages": self._metrics.stages,
                "global_step": self._metrics.last.get("global_step"),
                "groups": len(self._kept),
                "kept_steps": steps,
                "tasks": tasks,
            }

    def curves(self, names: Iterable[str], points: int) -> dict[str, Any]:
        """`MetricsFollower.curves`, and where stages begin."""
        with self._lock:
            self._follow()
            return {"stages": self._metrics.stages, "series": self._metrics.curves(list(names), points)}

    def groups(
        self, *, sort: str = "surprise", only: Iterable[str] = (), page: int = 0, size: int = 24, **wanted: str | None
    ) -> dict[str, Any]:
        """A page of kept groups. `wanted`: `stage`, `step` (of the run), `task`, `sample`, and `q`, a text in the question or the id.

        Raises:
            ConfigError: an order or a filter that is not known.
        """
        only = list(only)
        unknown = [name for name in (*only, sort) if name not in (FILTERS if name in only else SORTS)]
        if unknown:
            raise ConfigError(f"{unknown[0]!r:.40} is not known; orders: {', '.join(SORTS)}; filters: {', '.join(FILTERS)}")
        rules = [FILTERS[name] for name in only]
        with self._lock:
            self._follow()
            found = [(address, e) for address, e in self._kept.entries() if _matches(e, wanted) and all(rule(e) for rule in rules)]
        order = SORTS[sort]
        found.sort(key=lambda one: (order(one[1]), -one[1]["global_step"], one[0]))
        size = max(1, min(size, MOST))
        begin = max(0, page) * size
        return {"total": len(found), "page": page, "size": size, "groups": [_line(*one) for one in found[begin : begin + size]]}

    def same(self, sample: str) -> dict[str, Any]:
        """The kept groups of one question, over the whole run."""
        with self._lock:
            self._follow()
            found = [one for one in self._kept.entries() if one[1]["sample"] == sample]
        found.sort(key=lambda one: one[1]["global_step"])
        return {"sample": sample, "total": len(found), "groups": [_line(*one) for one in found[:SEEN_SAME]]}

    def group(self, address: str) -> dict[str, Any]:
        """A whole group with what is known of its media and with the marks on them.

        Raises:
            StorageError: there is none, or its file is damaged.
        """
        from vlmrl.extras.pages.view.drawn import drawn

        with self._lock:
            self._follow()
            record = self._kept.record(address)
        try:
            infos = {key: self._info(key) for key in _keys(record)}
            marks = drawn(record, [infos[one["key"]] for one in record["media"]])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise StorageError(f"{self.path / 'groups'}: the group at {address} is not as it was written: {error!r:.200}") from error
        return {"address": address, "record": record, "media": infos, "marks": marks}

    def frame(self, key: str, number: int) -> bytes:
        """A kept frame as JPEG.

        Raises:
            StorageError: it was not kept.
            Forbidden: its file leads out of the run.
        """
        path = self._kept.media(key)
        if path is None:
            raise StorageError(f"medium {key:.12} was not kept")
        return media.frame(self.confined(path), number)

    def _info(self, key: str) -> dict[str, Any] | None:
        path = self._kept.media(key)
        return None if path is None else media.info(self.confined(path))

    def _follow(self) -> None:
        """
        Raises:
            Forbidden: a file or folder that is read is a link out of the run.
        """
        for name in (*FILES, self._kept.path.name):
            self.confined(self.path / name)
        for folder in rank_folders(self._kept.path).values():
            self.confined(folder)
            with os.scandir(folder) as entries:  # which knows of links without another look at the disk
                for entry in entries:
                    if entry.is_symlink():
                        self.confined(Path(entry.path))
        self._metrics.follow()
        self._kept.follow()


def _keys(record: Mapping[str, Any]) -> list[str]:
    from vlmrl.extras.pages.kept.record import media_of

    return media_of(record)


def _matches(entry: Mapping[str, Any], wanted: Mapping[str, str | None]) -> bool:
    for name, key in (("stage", "stage"), ("step", "global_step"), ("task", "task"), ("sample", "sample")):
        value = wanted.get(name)
        if value and str(entry[key]) != value:
            return False
    text = (wanted.get("q") or "").casefold()
    return not text or text in entry["question"].casefold() or text in entry["sample"].casefold()


def _line(address: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"address": address} | {key: value for key, value in entry.items() if key not in ("at", "length")}
