"""Pages of evaluations: of one folder that `vlmrl eval` wrote, and of two of them side by side. One self-contained HTML file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.errors import ConfigError
from vlmrl.evals.pages.browser import TRUTH_COLOUR, Question, by_sample, filters, layers, question, stage_colours
from vlmrl.evals.pages.page import render_page
from vlmrl.evals.pages.run_page import differences
from vlmrl.evals.pages.runfiles import EvalFiles, Frames, load_eval
from vlmrl.evals.pages.table import figure, visible
from vlmrl.evals.score.measures import LABELS, present
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.summary import Incomparable, Summary, compare, summarize

WITHOUT_PIXELS = 200
"""Cards of a task of which no frames were kept."""
_SEED = 0
"""Of the bootstrap, as in `evals.ask.run`."""


def write_eval_report(out: Path) -> Path:
    """Write `report.html` of a folder of evaluation results: tables with 95% intervals, parts of each task, and every kept question.

    Raises:
        ConfigError: no evaluation was finished there.
        StorageError: a file is damaged, or the page cannot be written.
    """
    files = load_eval(out)
    path = out / "report.html"
    facts = [("folder", str(out.absolute())), ("suite", files.suite), (f"weights of {files.model}", files.fingerprint[:16])]
    fs.write_text(path, render_page("eval.html.jinja", page({files.model: files}, f"{files.model}: {files.suite}", facts)))
    return path


def write_comparison(a: Path, b: Path, out: Path) -> Path:
    """Write a page with the answers of two evaluations side by side, and paired differences b - a per task.

    Args:
        out: the HTML file.

    Raises:
        ConfigError: one of the folders has no finished evaluation, or they have no task in common.
        StorageError: a file is damaged, or the page cannot be written.
    """
    before, after = load_eval(a), load_eval(b)
    if not set(before.records) & set(after.records):
        raise ConfigError(
            f"{a} has the tasks {', '.join(before.records) or '(none)'}, {b} has {', '.join(after.records) or '(none)'}; "
            "give two evaluations with a task in common"
        )
    names = (before.model, after.model) if before.model != after.model else (f"{before.model} ({a.name})", f"{after.model} ({b.name})")
    if names[0] == names[1]:
        names = (f"{before.model} (first)", f"{after.model} (second)")
    sides = dict(zip(names, (before, after), strict=True))
    facts = [(name, str(files.path.absolute())) for name, files in sides.items()]
    facts += [(f"suite of {name}", files.suite) for name, files in sides.items()]
    facts += [(f"weights of {name}", files.fingerprint[:16]) for name, files in sides.items()]
    fs.write_text(out, render_page("eval.html.jinja", page(sides, f"{names[0]} and {names[1]}", facts)))
    return out


def page(sides: Mapping[str, EvalFiles], title: str, facts: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Everything that the template shows of one or more evaluations, by model."""
    colours = stage_colours(list(sides))
    names = list(dict.fromkeys(task for files in sides.values() for task in files.records))
    tasks = [_task(name, {model: files.records[name] for model, files in sides.items() if name in files.records}, sides) for name in names]
    questions = _questions(names, sides, colours)
    return {
        "name": visible(title),
        "subtitle": visible(", ".join(dict.fromkeys(files.suite for files in sides.values()))),
        "tasks": tasks,
        "colours": {visible(name): colour for name, colour in colours.items()},
        "questions": questions,
        "filters": filters(questions),
        "layers": layers(colours, questions),
        "truth": TRUTH_COLOUR,
        "asked": len({(task, r.sample_id) for files in sides.values() for task, rows in files.records.items() for r in rows}),
        "facts": [(visible(key), visible(value)) for key, value in facts],
    }


def _task(name: str, records: Mapping[str, Sequence[Record]], sides: Mapping[str, EvalFiles]) -> dict[str, Any]:
    """Tables of one task."""
    summaries = {model: summarize(rows, _SEED) for model, rows in records.items()}
    compared: dict[str, Any] = {"rows": [], "header": []}
    refused = [f"{model} was not evaluated on this task" for model in sides if model not in records]
    if len(records) == 2:
        (before, first), (after, second) = records.items()
        try:
            compared = differences({(before, after): compare(first, second, _SEED)})
        except Incomparable as error:
            refused.append(f"{before} and {after} cannot be compared: {error}")
    first_summary = next(iter(summaries.values()))
    return {
        "name": visible(name),
        "questions": len({r.sample_id for rows in records.values() for r in rows}),
        "answers": max(len(rows) for rows in records.values()),
        "videos": first_summary.clusters,
        "table": _table({visible(model): summary for model, summary in summaries.items()}),
        "parts": _table(_by_part(summaries)),
        "comparisons": compared,
        "refused": [visible(text) for text in refused],
    }


def _by_part(summaries: Mapping[str, Summary]) -> dict[str, Summary]:
    """`<part>` of one model, or `<part>: <model>` of several -> its summary, parts together."""
    parts = dict.fromkeys(part for summary in summaries.values() for part in summary.parts)
    several = len(summaries) > 1
    return {
        visible(f"{part}: {model}" if several else part): summary.parts[part]
        for part in parts
        for model, summary in summaries.items()
        if part in summary.parts
    }


def _table(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    columns = present(summary.metrics for summary in summaries.values()) if summaries else ()
    rows = [
        {
            "name": name,
            "n": summary.n,
            "cells": [
                {"mean": figure(m, x.mean), "interval": f"[{figure(m, x.low)}, {figure(m, x.high)}]"}
                if x
                else {"mean": "-", "interval": ""}
                for m in columns
                for x in [summary.metrics.get(m)]
            ],
        }
        for name, summary in summaries.items()
    ]
    return {"header": [LABELS[m] for m in columns], "rows": rows}


def _questions(tasks: Sequence[str], sides: Mapping[str, EvalFiles], colours: Mapping[str, str]) -> list[Question]:
    """The cards of all tasks: those with pixels, or the first ones of a task that has none."""
    pixels: dict[str, Frames] = {}
    for files in sides.values():
        for frames in files.frames:
            pixels.setdefault(frames.sample_id, frames)
    out: list[Question] = []
    for task in tasks:
        answered = by_sample({model: files.records[task] for model, files in sides.items() if task in files.records})
        wanted = [name for name in answered if name in pixels] or list(answered)[:WITHOUT_PIXELS]
        out += [question(len(out) + n, name, answered[name], colours, pixels.get(name), task) for n, name in enumerate(wanted)]
    return out
