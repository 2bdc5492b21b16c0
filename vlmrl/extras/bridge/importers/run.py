"""`vlmrl eval --import` writes the results of another harness as a folder that `vlmrl compare` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from vlmrl import __version__, fs
from vlmrl.config.names import task_problem
from vlmrl.data.source import load_source
from vlmrl.errors import ConfigError
from vlmrl.evals.score.measures import METRICS
from vlmrl.evals.score.paired import UPSTREAM
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.values import is_scored
from vlmrl.extras.bridge.importers.common import Imported
from vlmrl.extras.bridge.importers.lmms_eval import NAME, import_lmms_samples
from vlmrl.extras.bridge.importers.vlmevalkit import import_vlmevalkit
from vlmrl.types import Sample

Join = Literal["id", "index"]
KINDS: dict[str, Callable[..., Imported]] = {"lmms-eval": import_lmms_samples, "vlmevalkit": import_vlmevalkit}
"""Harness -> reader of one of its files."""


def run_import(
    path: Path,
    kind: str,
    out: Path,
    *,
    rows: Path | None = None,
    join: Join = "id",
    task: str | None = None,
    model: str | None = None,
    answer_format: str | None = None,
    version: str | None = None,
    primary: str | None = None,
) -> list[str]:
    """Write `<out>/<task>.jsonl` and `summary.json`; what could not be taken over, as lines to show.

    Args:
        path: a file of the harness; for lmms-eval also a folder, each of whose tasks must be there once.
        kind: of `KINDS`.
        rows: the rows that were asked, to score the answers as ours are; for a single task.
        join: `id`: a document's id is the row's id; `index`: it is the number of the row, from 0.
        primary: the metric that stands for each task: one of ours, or `upstream/<name>`.
        task, model, answer_format, version: see the readers.

    Raises:
        ConfigError: options that do not fit together, or an unknown metric.
        DataError: files or rows that cannot be used.
        StorageError: nothing can be written.
    """
    if kind not in KINDS:
        raise ConfigError(f"unknown kind '{kind}'; there is: {', '.join(KINDS)}")
    files = _files(path, kind)
    if len(files) > 1 and (rows is not None or task is not None):
        raise ConfigError(f"{path}: holds {len(files)} tasks; rows and a task's name are for a single file")
    samples = None if rows is None else rows_by(rows, join)
    done: dict[str, Imported] = {}
    for file in files:
        imported = KINDS[kind](file, task=task, model=model, answer_format=answer_format, version=version, samples=samples)
        name = imported.records[0].task
        if (problem := task_problem(name)) is not None:
            raise ConfigError(f"{file}: the task's name {problem}")
        _check_primary(primary, imported.records, file)
        done[name] = imported
    fs.mkdir(out)
    for name, imported in done.items():
        fs.write_bytes(out / f"{name}.jsonl", b"".join(record.line() for record in imported.records))
    notes = [note for imported in done.values() for note in imported.notes]
    value = _summary({name: imported.records for name, imported in done.items()}, kind, primary, notes)
    fs.write_text(out / "summary.json", json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return notes


def rows_by(path: Path, join: Join) -> dict[str, Sample]:
    """Rows by their id, or by their number in the file from 0.

    Raises:
        ConfigError: an unknown way to join.
        DataError: the file is missing or holds a bad row.
    """
    if join not in ("id", "index"):
        raise ConfigError(f"join: expected id or index, got '{join}'")
    samples = load_source(path, media_root=".", dedupe="error", max_bad_rows=None, quarantine=None)
    return {sample.id if join == "id" else str(place): sample for place, sample in enumerate(samples)}


def _files(path: Path, kind: str) -> list[Path]:
    """The file, or the samples files of a folder of lmms-eval."""
    if path.is_file():
        return [path]
    if not path.is_dir() or kind != "lmms-eval":
        raise ConfigError(f"{path}: no such file")
    found: dict[str, Path] = {}
    for file in sorted(path.glob("*_samples_*.jsonl")):
        name = NAME.fullmatch(file.name)
        if name is None:
            continue
        if name["task"] in found:
            raise ConfigError(
                f"{path}: task '{name['task']}' was run more than once ({found[name['task']].name}, {file.name}); give one file"
            )
        found[name["task"]] = file
    if not found:
        raise ConfigError(f"{path}: no file <date>_samples_<task>.jsonl; run lmms-eval with --log_samples and give its output folder")
    return list(found.values())


def _check_primary(primary: str | None, records: list[Record], where: Path) -> None:
    if primary is None:
        return
    upstream = sorted({name for r in records for name in r.scores if name.startswith(UPSTREAM)})
    own = list(METRICS) if all(map(is_scored, records)) else []
    if primary not in (*own, *upstream):
        raise ConfigError(f"{where}: no metric '{primary}'; there is: {', '.join((*upstream, *own)) or 'none (give rows to score with)'}")


def _summary(records: Mapping[str, list[Record]], kind: str, primary: str | None, notes: list[str]) -> dict[str, Any]:
    """As `vlmrl eval` writes it, as far as imports have it; means are over documents, of the answers that a score applies to."""
    first = next(iter(records.values()))[0]
    return {
        "suite": {"id": kind, "version": None, "tasks": [{"id": name, **({"primary": primary} if primary else {})} for name in records]},
        **{"model": first.model, "fingerprint": first.fingerprint, "vlmrl": __version__, "harness": first.harness, "notes": notes},
        "tasks": {name: {"n": len({r.sample_id for r in rows}), "metrics": _means(rows)} for name, rows in records.items()},
    }


def _means(records: list[Record]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for name, value in record.scores.items():
            found.setdefault(name, {}).setdefault(record.sample_id, []).append(value)
    means = {name: [sum(v) / len(v) for v in by.values()] for name, by in found.items()}
    return {name: {"mean": sum(values) / len(values)} for name, values in means.items()}
