"""From the folder of a run to its measures, one number each, and its curves.

`start M`, `end M` and `auc M` are the metric M of the held-out evaluation before the last stage, after it, and the mean height of the curve
between them; `M in TASK`, `M of CATEGORY` and `M in TASK of CATEGORY` are parts of it. `mean K`, `first K` and `last K` are a key of the
last stage's lines in metrics.jsonl: over all steps, the first three, and the last third. `A minus B` is the difference of two of these in
one run, as of what easy and hard questions have.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from vlmrl.errors import ConfigError
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.records import Record, by_sample, read_verified
from vlmrl.evals.score.runfiles import RunResults, read_run
from vlmrl.evals.score.table import UNBOUNDED
from vlmrl.evals.score.values import metric_values
from vlmrl.extras.study.stats import area, estimate
from vlmrl.plugins import import_plugins
from vlmrl.registry import nearest

Own = Callable[[Path], Mapping[str, float]]
"""The folder of a finished run -> further measures of it."""
FIRST = 3
"""Steps that stand for the beginning."""
TRAINED = ("reward", "distill/gap", "entropy", "kl", "completions/mean_length", "frac_reward_zero_std", "grad_norm", "loss")
"""Keys of metrics.jsonl that become curves."""
POINTS = 200
"""Most points of a curve."""
_EVALUATED = ("start", "end", "auc")
_TRAINED = ("mean", "first", "last")
_MINUS = " minus "


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one run says."""

    values: dict[str, float]
    questions: int
    """Held-out questions of its last evaluation."""
    curves: dict[str, dict[int, float]] = field(default_factory=dict)
    """Metric -> step over all stages -> value."""


def measured(path: Path, own: Sequence[Own] = (), named: Sequence[str] = ()) -> Measured:
    """Read a finished run, with those of the named measures that are differences of others.

    Raises:
        ConfigError: it has no evaluation, or an own measure is not a finite number.
        StorageError: a file is missing or damaged.
    """
    run = read_run(path)
    if not run.records:
        raise ConfigError(f"{path}: the run has no held-out evaluation; the recipe asks for one with eval.source")
    points = points_of(run)
    values = curve_values([(step, means) for step, (_, means) in points.items()])
    values |= training_values(run)
    for function in own:
        values |= {name: float(value) for name, value in function(path).items()}
    for name, (first, second) in ((name, name.split(_MINUS, 1)) for name in named if _MINUS in name):
        if first in values and second in values:
            values[name] = values[first] - values[second]
    if wrong := next((name for name, value in values.items() if not math.isfinite(value)), None):
        raise ConfigError(f"{path}: measure '{wrong}' is {values[wrong]}")
    return Measured(values=values, questions=len(by_sample(list(run.records.values())[-1])), curves=curves_of(run, points))


def stages_of(run: RunResults) -> list[tuple[str, int]]:
    """List (name, steps) of the stages; a stage that ended early has as many as it logged."""
    logged: dict[str, int] = {}
    for line in run.metrics:
        if isinstance(line.get("step"), int) and isinstance(line.get("stage"), str):
            logged[line["stage"]] = max(logged.get(line["stage"], 0), line["step"])
    return [(stage["name"], logged.get(stage["name"], int(stage["steps"]))) for stage in run.config["stages"]]


def points_of(run: RunResults) -> dict[int, tuple[int, dict[str, float]]]:
    """List the evaluations of the last stage: step of the stage (0 is its start) -> (step over all stages, metric -> value)."""
    stages = stages_of(run)
    last, steps = stages[-1]
    before = sum(count for _, count in stages[:-1])
    found: dict[int, list[Record]] = {}
    for name, records in run.records.items():
        stage, _, step = name.partition("@")
        if stage == last:
            found[int(step or steps)] = records
        else:
            found[0] = records  # the last of those before the stage
        _add_suite(run.path / "eval" / "suite" / name, found[int(step or steps) if stage == last else 0])
    return {step: (before + step, means_of(records)) for step, records in sorted(found.items())}


def _add_suite(folder: Path, records: list[Record]) -> None:
    """The answers to the tasks of a suite beside those to the held-out rows."""
    for file in sorted(folder.glob("*.jsonl")):
        records += read_verified(file)


def means_of(records: Sequence[Record]) -> dict[str, float]:
    """Average every metric over all questions, and over those of each task, category, and category of a task."""
    parts: dict[str, list[Record]] = {}
    for record in records:
        names = ["", f" in {record.task}"]
        names += [f" of {record.category}", f" in {record.task} of {record.category}"] if record.category is not None else []
        for name in names:
            parts.setdefault(name, []).append(record)
    out: dict[str, float] = {}
    for name, of in parts.items():
        for metric, found in metric_values(by_sample(of)).items():
            out[f"{metric}{name}"] = fmean(value for value, _ in found.values())
    return out


def curve_values(points: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Name `start`, `end` and `auc` of everything that the evaluations have.

    Args:
        points: (step of the stage, metric -> value), rising. Without one at step 0 there is no `start`, and no `auc` of a single one.
    """
    out = {f"end {name}": value for name, value in points[-1][1].items()}
    if points[0][0] == 0:
        out |= {f"start {name}": value for name, value in points[0][1].items()}
    if len(points) > 1:
        shared = set.intersection(*(set(means) for _, means in points))
        out |= {f"auc {name}": area([(step, means[name]) for step, means in points]) for name in sorted(shared)}
    return out


def training_values(run: RunResults) -> dict[str, float]:
    """Name `mean`, `first` and `last` of every number that the last stage logged."""
    series = _series(run, run.config["stages"][-1]["name"])
    out: dict[str, float] = {}
    for key, found in series.items():
        heights = [value for _, value in sorted(found.items()) if math.isfinite(value)]
        if heights:
            out[f"mean {key}"] = fmean(heights)
            out[f"first {key}"] = fmean(heights[:FIRST])
            out[f"last {key}"] = fmean(heights[-max(1, len(heights) // 3) :])
    return out


def _series(run: RunResults, stage: str) -> dict[str, dict[int, float]]:
    """Key -> step -> value of a stage's lines."""
    out: dict[str, dict[int, float]] = {}
    for line in run.metrics:
        if line.get("stage") != stage or not isinstance(line.get("step"), int):
            continue
        for key, value in line.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and key not in ("step", "global_step", "wall"):
                out.setdefault(key, {})[line["step"]] = float(value)
    return out


def curves_of(run: RunResults, points: Mapping[int, tuple[int, Mapping[str, float]]]) -> dict[str, dict[int, float]]:
    """Read the curves over all steps of a run: the held-out metrics of the last stage, and `TRAINED`."""
    out: dict[str, dict[int, float]] = {}
    for step, means in points.values():
        for name, value in means.items():
            if " " not in name:
                out.setdefault(f"eval/{name}", {})[step] = value
    before = 0
    for stage, steps in stages_of(run):
        for key, found in _series(run, stage).items():
            if key in TRAINED:
                out.setdefault(key, {}).update({before + step: value for step, value in found.items() if math.isfinite(value)})
        before += steps
    return out


def bands(runs: Sequence[Measured]) -> dict[str, dict[str, list[Any]]]:
    """Average curves over the runs of an arm: metric -> x, mean and the ends of its 95% t interval, None where one run is there."""
    out: dict[str, dict[str, list[Any]]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.curves):
        heights: dict[int, list[float]] = {}
        for run in runs:
            for step, value in run.curves.get(name, {}).items():
                heights.setdefault(step, []).append(value)
        steps = sorted(heights)
        steps = steps[:: -(-len(steps) // POINTS)]
        found = [estimate(heights[step]) for step in steps]
        low, high = ([getattr(one, side) if one.n > 1 else None for one in found] for side in ("low", "high"))
        out[name] = {"x": steps, "mean": [one.mean for one in found], "low": low, "high": high}
    return out


def resolution_of(questions: int) -> Callable[[str], float]:
    """Make the function from a measure to what one held-out answer changes in it; 0 for what is not a mean over held-out answers."""

    def resolution(measure: str) -> float:
        when, _, metric = measure.partition(" ")
        return 1 / questions if questions and when in _EVALUATED and metric.split(" ")[0] not in UNBOUNDED else 0.0

    return resolution


def own_measures(places: Sequence[str]) -> list[Own]:
    """Import the functions of `measures`.

    Raises:
        ConfigError: there is no such module or function.
    """
    out: list[Own] = []
    for place in places:
        module, colon, name = place.partition(":")
        if not colon:
            raise ConfigError(f"measures: '{place}': expected module:function")
        import_plugins([module], "measures")
        function: Any = getattr(sys.modules[module], name, None)
        if not callable(function):
            raise ConfigError(f"measures: module '{module}' has no function '{name}'{nearest(name, dir(sys.modules[module]))}")
        out.append(cast("Own", function))
    return out


def unknown_measures(names: Sequence[str]) -> list[str]:
    """List the problems of measures that no run could have, where there are no own ones."""
    out: list[str] = []
    for name in (part for asked in names for part in asked.split(_MINUS, 1)):
        when, _, metric = name.partition(" ")
        if when not in (*_EVALUATED, *_TRAINED) or not metric:
            out.append(f"measure '{name}': expected one of {', '.join((*_EVALUATED, *_TRAINED))} and what is measured, as 'end exact'")
        elif when in _EVALUATED and metric.split(" ")[0] not in LABELS:
            metric = metric.split(" ")[0]
            out.append(f"measure '{name}': no metric '{metric}'{nearest(metric, list(LABELS))} (vlmrl eval shows them)")
    return out


def require(names: Sequence[str], found: Mapping[str, Mapping[int, Mapping[str, float]]]) -> None:
    """Check that each measure is in some run.

    Raises:
        ConfigError: one is in none, with the nearest that there is.
    """
    known = sorted({name for of in found.values() for values in of.values() for name in values})
    if problems := [
        f"no run has the measure '{name}'{nearest(name, known)}" for name in dict.fromkeys(names) if known and name not in known
    ]:
        raise ConfigError(problems)
