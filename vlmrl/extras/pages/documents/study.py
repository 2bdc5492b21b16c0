"""The report of a study from its `study.json`: verdicts with what they rest on, and each arm over its seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import StorageError
from vlmrl.evals.score.recipes import NOT_MEASURED
from vlmrl.evals.score.table import figure
from vlmrl.extras.pages.documents.shapes import Doc, card, cell, report, table
from vlmrl.metrics.intervals import paired_seeds

STUDY = "study.json"
SEEDS = 3
"""Least runs of an arm from which a t interval says something."""
KINDS = {"holds": "better", "premise not met": "worse"}
"""Of verdicts, as news."""


def study_of(path: Path) -> dict[str, list[Path]] | None:
    """The arms of a study, name -> folders of its runs; None where there is none."""
    file = path / STUDY
    if not file.is_file():
        return None
    try:
        arms = json.loads(file.read_bytes())["arms"]
        return {str(name): [path / str(folder) for folder in folders] for name, folders in arms.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{file}: not a study ({error!r}): it needs 'arms', a name for each with a list of folders of runs") from error


def over_seeds(metric: str, values: Sequence[float]) -> Doc:
    """A mean over runs with a t interval, and a note on how many there are."""
    mean, n = statistics.fmean(values), len(values)
    bounds = paired_seeds([0.0] * n, values).bounds() if n >= SEEDS else None
    low, high = (None, None) if bounds is None else (bounds.low, bounds.high)
    interval = "" if low is None or high is None else f"[{figure(metric, low)}, {figure(metric, high)}]"
    note = f"mean over {n} seeds, " + ("95% t interval" if n >= SEEDS else "too few for an interval")
    note = f"one run: {NOT_MEASURED}" if n == 1 else note
    return {"mean": mean, "low": low, "high": high, "text": figure(metric, mean), "interval": interval, "why": "", "note": note}


def study_doc(path: Path) -> Doc | None:
    """What a study says; None where there is none."""
    if study_of(path) is None:
        return None
    found: dict[str, Any] = json.loads((path / STUDY).read_bytes())
    comparisons: Mapping[str, Any] = found.get("comparisons") or {}
    try:
        rows = [_verdict(name, one) for name, one in comparisons.items()]
        header = ["comparison", "measure", "verdict", "effect", "smallest of interest", "seeds", "power to hold", "power to exclude"]
        note = (
            "Effects are differences paired by seed with Student's t intervals. Power: with the deviation that was found, of an effect of "
        )
        tables = [table("Verdicts", header, rows, f"{note}the smallest size to hold, and without an effect to exclude it.")] if rows else []
        conditions = [row for name, one in comparisons.items() for row in _conditions(name, one)]
        if conditions:
            tables.append(table("Premises and further conditions", ["comparison", "condition", "wanted", "found", "so"], conditions))
        return report(
            str(found.get("name") or path.resolve().name),
            about=str(found.get("state", "")),
            said=[f"{name}: {one['verdict']}{f' ({remark})' if (remark := one['remark']) else ''}." for name, one in comparisons.items()],
            cards=[one for one in (_arms(found["measured"], name, one) for name, one in comparisons.items()) if one["rows"]],
            tables=tables,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"{path / STUDY}: not the results of a study ({error!r}); vlmrl study writes them again") from error


def _effect(one: Mapping[str, Any]) -> tuple[str, str]:
    """An effect and its interval."""
    if one["effect"] is None:
        return "-", ""
    return f"{one['effect']:+.3f}", "" if one["low"] is None else f"[{one['low']:+.3f}, {one['high']:+.3f}]"


def _verdict(name: str, one: Mapping[str, Any]) -> list[str | Doc]:
    primary = one["primary"]
    powers = [
        "-" if one[key] is None else f"{one[key][what]:.0%}" for key, what in (("power", "holds"), ("power_without_effect", "no_effect"))
    ]
    measure = cell(primary["text"], primary["compared"])
    verdict = cell(one["verdict"], one["remark"], kind=KINDS.get(one["verdict"]))
    return [name, measure, verdict, cell(*_effect(primary)), f"{primary['delta']:g}", str(primary["seeds"]), *powers]


def _conditions(name: str, one: Mapping[str, Any]) -> list[list[str | Doc]]:
    rows: list[list[str | Doc]] = []
    for x in one["premises"]:
        bounds = [f"{word} {x[key]:g}" for key, word in (("low", "at least"), ("high", "at most")) if x[key] is not None]
        value = "-" if x["value"] is None else f"{x['value']:.3f}"
        rows.append([name, x["text"], " and ".join(bounds), value, "met" if x["met"] else cell("not met", kind="worse")])
    for x in one["secondary"]:
        p = "" if x["p_holm"] is None else f" p {x['p_holm']:.3g} (Holm)"
        effect, interval = _effect(x)
        wanted = f"{x['compared']} above {-x['margin']:g}"
        rows.append([name, x["text"], wanted, cell(effect, f"{interval}{p}"), "shown" if x["shown"] else "not shown"])
    return rows


def _arms(measured: Mapping[str, Mapping[str, Mapping[str, float]]], name: str, one: Mapping[str, Any]) -> Doc:
    """The measure that decides, of each arm over its seeds."""
    primary, rows = one["primary"], []
    for number, (arm, of) in enumerate(measured.items()):
        values = [values[primary["measure"]] for values in of.values() if primary["measure"] in values]
        if values and arm in (one["arm"], one["control"]):
            rows.append({"name": f"{arm} ({len(values)})", "colour": number % 8, **over_seeds("", values)})
    return card(name, rows, text=primary["text"], note="means over the seeds of an arm, 95% t intervals")
