"""The run report (`report.html`): one self-contained HTML file without any reference to elsewhere.

What is shown is prepared here as plain values; the template escapes all of it. Text of models and rows has its invisible
characters spelled out besides (`table.visible`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.evals.page import TRUTH_COLOUR, render_page
from vlmrl.evals.score.baseline import constant_baseline
from vlmrl.evals.score.levels import METRICS as LEVEL_METRICS
from vlmrl.evals.score.levels import level_table
from vlmrl.evals.score.measures import LABELS, present
from vlmrl.evals.score.paired import Comparison, Gap, comparisons_of
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.runfiles import seed_of
from vlmrl.evals.score.summary import Interval, Summary, summarize
from vlmrl.evals.score.table import difference_text, figure, headline, interval_text, level_cell, level_labels, p_text, visible
from vlmrl.evals.score.timeshare import time_shares
from vlmrl.evals.score.verdict import verdict
from vlmrl.extras.pages.browser import by_sample, filters, layers, model_colours, question, span_text
from vlmrl.extras.pages.charts import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, charts, number
from vlmrl.extras.pages.happened import what_happened
from vlmrl.extras.pages.runfiles import RunFiles, load_run

MAX_CARDS = 2000
"""Questions of a page; those with pixels come first."""


def write_report(run_dir: Path, to: Path | None = None) -> Path:
    """Write the page of a run, finished or not, from what its directory holds.

    Args:
        to: the file; None is `report.html` in the directory.

    Raises:
        ConfigError: not a run directory.
        StorageError: a file of the run is damaged, or the report cannot be written.
    """
    path = run_dir / "report.html" if to is None else to
    fs.mkdir(path.parent)
    fs.write_text(path, render(load_run(run_dir)))
    return path


def render(run: RunFiles) -> str:
    """The page as text."""
    return render_page(__name__, "report.html.jinja", page(run))


def page(run: RunFiles) -> dict[str, Any]:
    """Everything that the template shows, as plain values."""
    seed = seed_of(run)
    colours = model_colours(list(run.records))
    summaries = {name: summarize(rows, seed) for name, rows in run.records.items() if rows}
    records = {name: run.records[name] for name in summaries}
    comparisons, refused = comparisons_of(records, seed)
    panels = panels_of(run)
    answered = by_sample(run.records)
    pixels = {frames.sample_id: frames for frames in run.frames if frames.sample_id in answered}
    cards = [*pixels, *(name for name in answered if name not in pixels)][:MAX_CARDS]
    questions = [question(n, name, answered[name], colours, pixels.get(name), prompts=run.prompts) for n, name in enumerate(cards)]
    return {
        "name": visible(run.path.absolute().name),
        "finished": run.finished,
        "subtitle": subtitle(run),
        "happened": [visible(text) for text in what_happened(records, seed, comparisons)],
        "verdict": [visible(text) for text in verdict(records, seed, comparisons)],
        "tiles": tiles(summaries, comparisons),
        "results": results(summaries, colours, _constant(run.records)),
        "levels": level_rows(records, colours, seed),
        "comparisons": differences(comparisons),
        "refused": [visible(text) for text in refused],
        "panels": panels,
        "hover": {chart.id: dict(chart.hover) for _, of_stage in panels for chart in of_stage},
        "time": time_shares(run.metrics),
        "phase_colours": COLOURS,
        "questions": questions,
        "filters": filters(questions),
        "layers": layers(colours, questions),
        "truth": TRUTH_COLOUR,
        "asked": len(answered),
        "with_pixels": len(pixels),
        "facts": facts(run),
        "config": visible(run.config_text),
        "plot": {"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM, "width": WIDTH, "height": HEIGHT},
    }


def panels_of(run: RunFiles) -> list[tuple[str, list[Chart]]]:
    """Charts of the whole run, then of each stage, where there are several."""
    everything = charts(run.metrics, prefix="all")
    stages = list(dict.fromkeys(band.name for chart in everything for band in chart.bands if band.name))
    out = [("all", everything)] if everything else []
    if len(stages) > 1:
        stages.sort(key=[str(line["stage"]) for line in run.metrics].index)
        out += [(visible(name), charts([x for x in run.metrics if x["stage"] == name], prefix=f"s{n}")) for n, name in enumerate(stages)]
    return out


def tiles(summaries: Mapping[str, Summary], comparisons: Mapping[tuple[str, str], Comparison]) -> list[dict[str, str]]:
    """The few numbers at the top: the last model's, each with its change since the first."""
    if not summaries:
        return []
    names = list(summaries)
    change = comparisons.get((names[0], names[-1]))
    out: list[dict[str, str]] = []
    last = summaries[names[-1]]
    shown = ("miou", "r1@0.5") if "miou" in last.metrics else headline([last])
    for metric in (*shown, "think_rate", "tokens"):
        value = last.metrics[metric].mean
        gap = None if change is None else change.gaps.get(metric)
        if metric == "think_rate" and value == 0 and (gap is None or gap.a == 0):
            continue  # nobody asked for thoughts
        note = "" if gap is None else f"{difference_text(metric, gap)} since {visible(names[0])}"
        if gap is not None and unchanged(gap):
            note = f"as in {visible(names[0])}"
        out.append({"label": f"{LABELS[metric]} after {visible(names[-1])}", "value": figure(metric, value), "note": note})
    return out


def results(summaries: Mapping[str, Summary], colours: Mapping[str, str], constant: tuple[str, float] | None) -> dict[str, Any]:
    """Table and figure of all models."""
    columns, dots = present(summary.metrics for summary in summaries.values()), headline(summaries.values())
    rows = [
        {
            "name": visible(name),
            "colour": colours[name],
            "n": summary.n,
            "cells": [mean_cell(m, summary) for m in columns],
        }
        for name, summary in summaries.items()
    ]
    first = next(iter(summaries.values()), None)
    return {
        "header": [LABELS[m] for m in columns],
        "figures": figures(dots, summaries, colours, None if constant is None else constant[1]),
        "rows": rows,
        "questions": 0 if first is None else first.n,
        "videos": 0 if first is None else first.clusters,
        "constant": None if constant is None else {"span": constant[0], "miou": figure("miou", constant[1]), "at": 100 * constant[1]},
    }


def mean_cell(metric: str, summary: Summary) -> dict[str, Any]:
    """A mean with its interval, or why it has none, which makes it `flat`."""
    x = summary.metrics.get(metric)
    if x is None:
        return {"mean": "-", "interval": "", "flat": True}
    mean, interval = interval_text(metric, x).split(" ", 1)
    return {"mean": mean, "interval": interval, "flat": x.low is None}


def figures(
    metrics: Sequence[str], summaries: Mapping[str, Summary], colours: Mapping[str, str], constant: float | None
) -> list[dict[str, Any]]:
    """A row of dots with intervals per model, for each metric from 0 to 1. `constant`: mIoU of the best constant answer."""
    return [
        {
            "label": LABELS[m],
            "constant": 100 * constant if m == "miou" and constant is not None else None,
            "rows": [
                {
                    "name": visible(name),
                    "colour": colours[name],
                    "dot": _dot(m, x) if x else None,
                }
                for name, summary in summaries.items()
                for x in [summary.metrics.get(m)]
            ],
        }
        for m in metrics
    ]


def _dot(metric: str, x: Interval) -> dict[str, Any]:
    """Where a mean and its interval stand, in percent; without an interval the line has no length, and the text says why."""
    low, high = (x.mean, x.mean) if x.low is None or x.high is None else (x.low, x.high)
    text = figure(metric, x.mean) if x.low is not None else interval_text(metric, x)
    return {"at": 100 * x.mean, "low": 100 * low, "width": 100 * (high - low), "text": text}


def unchanged(gap: Gap) -> bool:
    """Whether every question has the same value on both sides."""
    return not gap.differ


def level_rows(records: Mapping[str, Sequence[Record]], colours: Mapping[str, str], seed: int) -> dict[str, Any] | None:
    """Table of questions by how hard they are, stages side by side; None where it does not apply (`levels.level_table`)."""
    x = level_table(records, seed)
    if x is None:
        return None
    rows = [
        {
            "name": visible(row.name),
            "n": row.n,
            "cells": [
                {"mean": mean, "interval": interval, "first": m == LEVEL_METRICS[0]}
                for stage in x.stages
                for m in LEVEL_METRICS
                for mean, interval in [level_cell(m, row.stages.get(stage))]
            ],
        }
        for row in x.rows
    ]
    stages = [{"name": visible(stage), "colour": colours[stage]} for stage in x.stages]
    return {"label": x.label, "header": level_labels(x), "stages": stages, "rows": rows}


def gap_cell(metric: str, gap: Gap) -> dict[str, Any]:
    """A difference with its interval and p value; `sure` where the interval leaves out 0."""
    if unchanged(gap):
        return {"mean": "same", "interval": "", "p": "", "test": "", "sure": False}
    mean, interval = difference_text(metric, gap).split(" ", 1)
    return {"mean": mean, "interval": interval, "p": p_text(gap.p), "test": gap.test, "sure": gap.sign != 0}


def differences(comparisons: Mapping[tuple[str, str], Comparison]) -> dict[str, Any]:
    """Pairs of models as rows, metrics as columns."""
    shared = present(comparison.gaps for comparison in comparisons.values()) if comparisons else ()
    metrics = [m for m in shared if m not in ("format_rate", "truncation_rate") and all(m in c.gaps for c in comparisons.values())]
    rows = [
        {
            "before": visible(before),
            "after": visible(after),
            "better": comparison.better,
            "worse": comparison.worse,
            "cells": [gap_cell(m, comparison.gaps[m]) for m in metrics],
        }
        for (before, after), comparison in comparisons.items()
    ]
    return {"header": [LABELS[m] for m in metrics], "rows": rows}


def subtitle(run: RunFiles) -> str:
    """The stages, in a line."""
    stages = [s for s in run.config.get("stages") or [] if isinstance(s, dict)]
    parts = [f"{s.get('name')} ({s.get('kind')}, {s.get('steps')} steps)" for s in stages]
    return visible("  →  ".join(parts))


def facts(run: RunFiles) -> list[tuple[str, str]]:
    """What is needed to do it again."""
    packages = _at(run.environment, "packages") or {}
    steps = max((int(line["global_step"]) for line in run.metrics if "global_step" in line), default=0)
    tokens = sum(float(line.get("tokens/forward", 0.0)) for line in run.metrics)
    out: list[tuple[str, Any]] = [
        ("model", _at(run.config, "model", "path")),
        ("data", _at(run.config, "data", "root")),
        ("seed", _at(run.config, "run", "seed")),
        ("steps logged", steps),
        ("tokens in forward passes", number(tokens) if tokens else None),
        ("hash of the recipe", run.config_hash[:16]),
        ("vlmrl", run.environment.get("vlmrl")),
        ("Python", run.environment.get("python")),
        *((name, packages[name]) for name in sorted(packages)),
        ("machine", " ".join(str(v) for v in (_at(run.environment, "machine") or {}).values())),
        ("accelerators", ", ".join(_at(run.environment, "accelerators") or []) or "none"),
    ]
    for stage, rows in run.records.items():
        if rows:
            out.append((f"weights of {stage}", rows[0].fingerprint[:16]))
    return [(visible(key), visible(str(value))) for key, value in out if value not in (None, "")]


def _constant(records: Mapping[str, Sequence[Record]]) -> tuple[str, float] | None:
    rows = next((rows for rows in records.values() if rows), None)
    if rows is None or any(r.answer_type != "time_span" for r in rows):
        return None
    span, miou = constant_baseline([(r.gold[0], r.gold[1]) for r in rows])
    return span_text(span), miou


def _at(value: Any, *keys: str) -> Any:
    """A value within nested mappings; None where a key is absent."""
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value
