"""Reads one side of a comparison: a folder of `vlmrl eval`, the suite of a run, or a records file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.errors import StorageError
from vlmrl.evals.score.records import Record, read_verified
from vlmrl.evals.score.runfiles import stored_recipe


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One side of a comparison."""

    path: Path
    model: str
    version: str | None
    """Of the program that wrote the records; None for a records file without its folder or run."""
    processor: str | None
    """What made prompts and pixels of rows; None where nothing says so."""
    tasks: Mapping[str, Mapping[str, Any]]
    """Task -> its definition in the suite, where the folder has one; of a run its media settings."""
    records: Mapping[str, list[Record]]
    """By task."""


def load_evaluation(path: Path, *, task: str | None = None) -> Evaluation:
    """Read one side.

    Args:
        path: folder with `summary.json`, of a run's suite (`eval/suite/<stage>`), or a records file; a file is a task of its own only if
            `task` names it, else its records are parted by their `task`.

    Raises:
        StorageError: neither, or a file is missing or damaged.
    """
    folder = path if path.is_dir() else path.parent
    found = _summary(folder / "summary.json")
    # a run writes the tasks of its suites without a summary
    if path.is_dir() and found is None and path.parent.name == "suite":
        records = {file.stem: read_verified(file) for file in sorted(path.glob("*.jsonl"))}
    elif path.is_dir():
        if found is None:
            raise StorageError(f"{path}: no summary.json; give a folder that `vlmrl eval` wrote to its end, a run, or a records file")
        # in the order of the suite; `dict.fromkeys` drops repeats and keeps order
        names = dict.fromkeys([*(one["id"] for one in found["suite"]["tasks"]), *found["tasks"]])
        records = {name: read_verified(folder / f"{name}.jsonl") for name in names}
    else:
        rows = read_verified(path)
        records = {name: [r for r in rows if r.task == name] for name in sorted({r.task for r in rows})} if task is None else {task: rows}
    run = path.parent.parent if found is None and path.parent.name == "eval" else None
    version, media = (found["vlmrl"] if found else None, None) if run is None else _of_run(run)
    tasks = {one["id"]: one for one in found["suite"]["tasks"]} if found else {name: {"media": media} for name in records if media}
    models = list(dict.fromkeys(r.model for rows in records.values() for r in rows))
    return Evaluation(
        path=path,
        model=found["model"] if found and path.is_dir() else ", ".join(models) or path.stem,
        version=version,
        processor=found.get("processor") if found else None,
        tasks=tasks,
        records=records,
    )


def _of_run(run: Path) -> tuple[str | None, Mapping[str, Any] | None]:
    """The program that last wrote to a run, and its media settings; of a folder that is no run neither."""
    if not (run / "config.yaml").is_file() or not (run / "environment.json").is_file():
        return None, None
    recipe = stored_recipe(run)[1]
    try:
        return str(json.loads((run / "environment.json").read_bytes())["vlmrl"]), recipe.get("media")
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{run / 'environment.json'}: not what a run writes ({error!r}); the same `vlmrl train` again writes it anew"
        ) from error


def _summary(path: Path) -> dict[str, Any] | None:
    """The summary of a folder, None if there is none."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_bytes())
        texts = [value["model"], value["vlmrl"], *(one["id"] for one in value["suite"]["tasks"]), *value["tasks"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path}: not the summary of an evaluation ({error!r}); run the evaluation again") from error
    if not all(isinstance(text, str) for text in texts):
        raise StorageError(f"{path}: not the summary of an evaluation (a name is no text); run the evaluation again")
    return value
