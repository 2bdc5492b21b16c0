"""Reads what a run or an evaluation has left: metrics, recipe, environment and records."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vlmrl.errors import ConfigError, StorageError
from vlmrl.evals.score.records import Record, read_verified

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True)
class EvalResults:
    """The folder of an evaluation."""

    path: Path
    model: str
    suite: str
    fingerprint: str
    records: dict[str, list[Record]]
    """By task, in the order of the suite."""
    limits: dict[str, int]
    """Tasks of which only so many rows were asked."""


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """The directory of a run."""

    path: Path
    config_text: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    """Lines of metrics.jsonl, non-finite values restored."""
    records: dict[str, list[Record]]
    """By stage, in the order of evaluation."""
    finished: bool

    @property
    def config_hash(self) -> str:
        return hashlib.sha256(self.config_text.encode()).hexdigest()


def plugins_of(path: Path) -> list[str]:
    """Read the plug-ins of the recipe that a run directory keeps; its records may need them to be read. None where it keeps no recipe.

    Raises:
        StorageError: the recipe is damaged.
    """
    names = stored_recipe(path)[1].get("plugins") or [] if (path / "config.yaml").is_file() else []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StorageError(f"{path / 'config.yaml'}: 'plugins' must be a list of module names, got {names!r:.80}")
    return names


def stored_recipe(path: Path) -> tuple[str, dict[str, Any]]:
    """Read `config.yaml` of a run as text and as values.

    Raises:
        ConfigError: there is none.
        StorageError: it is damaged.
    """
    if not (path / "config.yaml").is_file():
        raise ConfigError(f"{path}: not a run directory (no config.yaml); give the folder <run.root>/<run.name>")
    text = (path / "config.yaml").read_text(encoding="utf-8")
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise StorageError(f"{path / 'config.yaml'}: not YAML: {error}") from error
    return text, config if isinstance(config, dict) else {}


def read_run(path: Path) -> RunResults:
    """Read a run directory. A run that has not come to metrics or evaluations yet has none; that is no error.

    Raises:
        ConfigError: not a run directory.
        StorageError: a file is damaged.
    """
    text, config = stored_recipe(path)
    order = _json(path / "eval" / "order.json", [])
    records = {name: read_verified(path / "eval" / f"{name}.jsonl") for name in order}
    return RunResults(
        path=path,
        config_text=text,
        config=config,
        environment=_json(path / "environment.json", {}),
        metrics=read_metrics(path / "metrics.jsonl") if (path / "metrics.jsonl").exists() else [],
        records=records,
        finished=(path / "FINISHED").exists(),
    )


def read_eval(path: Path) -> EvalResults:
    """Read a folder that `vlmrl eval` wrote: `summary.json` and `<task>.jsonl`.

    Raises:
        ConfigError: no evaluation was finished there.
        StorageError: a file is damaged.
    """
    file = path / "summary.json"
    if not file.is_file():
        raise ConfigError(f"{path}: no evaluation there (no summary.json); give the folder that `vlmrl eval` wrote its results to")
    summary = _json(file, {})
    try:
        asked = [task["id"] for task in summary["suite"].get("tasks", [])]
        # in the order of the suite; what was evaluated without being in it comes last
        names = [*(n for n in asked if n in summary["tasks"]), *(n for n in summary["tasks"] if n not in asked)]
        suite = f"{summary['suite']['id']} v{summary['suite']['version']}"
        model, fingerprint = str(summary["model"]), str(summary["fingerprint"])
        limits = {task["id"]: int(task["limit"]) for task in summary["suite"].get("tasks", []) if task.get("limit")}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{file}: not the summary of an evaluation ({error!r}); run the evaluation again") from error
    records = {name: read_verified(path / f"{name}.jsonl") for name in names}
    return EvalResults(
        path=path,
        model=model,
        suite=suite,
        fingerprint=fingerprint,
        records=records,
        limits=limits,
    )


def evaluation_at(path: Path) -> Path:
    """Find the evaluation that a path stands for: of a run, or of its folder `eval`, the records of the last one; else the path itself.

    The last one is that of the held-out rows (`eval/<stage>.jsonl`), or of a run that asks only a suite the folder of its tasks
    (`eval/suite/<stage>`).

    Raises:
        ConfigError: a run has no evaluation.
        StorageError: its list of evaluations, or its recipe, is damaged.
    """
    run = path.parent if path.name == "eval" else path
    # a folder with a summary is an evaluation itself, even inside of a run
    if (path / "summary.json").exists() or not (run / "config.yaml").is_file():
        return path
    folder = run / "eval"
    order = _json(folder / "order.json", [])
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise StorageError(f"{folder / 'order.json'}: not a list of evaluations; the same `vlmrl train` again writes it anew")
    held_out = [file for name in order if (file := folder / f"{name}.jsonl").is_file()]
    if held_out:
        return held_out[-1]
    stages = [stage.get("name") for stage in stored_recipe(run)[1].get("stages") or [] if isinstance(stage, dict)]

    def place(one: Path) -> tuple[int, float]:
        # `STAGE@STEP` before `STAGE`, which was evaluated at its end; a stage that the recipe does not name comes first of all
        stage, _, step = one.name.partition("@")
        return (stages.index(stage) if stage in stages else -1), (float(step) if step.isdecimal() else math.inf)

    of_suite = [one for one in (folder / "suite").glob("*") if any(one.glob("*.jsonl"))]
    if not of_suite:
        raise ConfigError(f"{run}: the run has no evaluation yet; a recipe asks for them with eval.source or eval.suite")
    return max(of_suite, key=place)


def read_metrics(path: Path, skip: int = 0) -> list[dict[str, Any]]:
    """Read the lines of a metrics file behind the first `skip` ones. A last line without its newline was being written when the process
    died, and is left out.

    Raises:
        StorageError: the file is missing, or another line is not a JSON object.
    """
    if not path.is_file():
        raise StorageError(f"{path}: no metrics file")
    out: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[skip:-1], start=skip + 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise StorageError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise StorageError(f"{path}:{number}: not a JSON object")
        # JSON has no NaN and no infinity, so they are written as texts
        out.append({key: _NON_FINITE.get(value, value) if isinstance(value, str) else value for key, value in row.items()})
    return out


def seed_of(run: RunResults) -> int:
    """Read the seed that decides the resampling of every interval that is shown of a run."""
    section = run.config.get("run")
    return int(section.get("seed") or 0) if isinstance(section, Mapping) else 0


def _json(path: Path, default: Any) -> Any:
    if not path.exists():
        return default
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise StorageError(f"{path}: not JSON: {error}") from error
