"""Evaluation pages: one evaluation, or two side by side with their comparison. One self-contained HTML file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl import fs
from vlmrl.evals.page import TRUTH_COLOUR, render_page
from vlmrl.evals.score.compare import FolderComparison, TaskComparison
from vlmrl.evals.score.measures import LABELS, present
from vlmrl.evals.score.summary import Summary, summarize
from vlmrl.evals.score.table import Cells, headline, p_text, visible
from vlmrl.extras.pages.browser import Question, by_sample, filters, layers, model_colours, question
from vlmrl.extras.pages.run_page import figures, gap_cell, mean_cell
from vlmrl.extras.pages.runfiles import EvalFiles, Frames, load_eval

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
    fs.write_text(path, render_page(__name__, "eval.html.jinja", page({files.model: files}, f"{files.model}: {files.suite}", facts)))
    return path


def write_comparison(result: FolderComparison, out: Path) -> Path:
    """Write a page with the answers of two evaluations side by side and the numbers of their comparison.

    Args:
        result: of two folders (`compare_folders`).
        out: the HTML file.

    Raises:
        ConfigError: one of the folders has no finished evaluation.
        StorageError: a file is damaged, or the page cannot be written.
    """
    before, after = (load_eval(Path(path)) for path in result.paths)
    names = (before.model, after.model)
    if before.model == after.model:
        names = (f"{before.model} ({before.path.name})", f"{after.model} ({after.path.name})")
    if names[0] == names[1]:
        names = (f"{before.model} (first)", f"{after.model} (second)")
    sides = dict(zip(names, (before, after), strict=True))
    facts = [(name, str(files.path.absolute())) for name, files in sides.items()]
    facts += [(f"suite of {name}", files.suite) for name, files in sides.items()]
    facts += [(f"weights of {name}", files.fingerprint[:16]) for name, files in sides.items()]
    fs.write_text(out, render_page(__name__, "eval.html.jinja", page(sides, f"{names[0]} and {names[1]}", facts, result)))
    return out


def page(
    sides: Mapping[str, EvalFiles], title: str, facts: Sequence[tuple[str, str]], result: FolderComparison | None = None
) -> dict[str, Any]:
    """Everything that the template shows of one evaluation, or of two and their comparison, by model."""
    colours = model_colours(list(sides))
    names = list(dict.fromkeys(task for files in sides.values() for task in files.records))
    compared = {} if result is None else {x.task: x for x in result.tasks}
    questions = _questions(names, sides, colours)
    return {
        "name": visible(title),
        "subtitle": visible(", ".join(dict.fromkeys(files.suite for files in sides.values()))),
        "warnings": [] if result is None else [visible(text) for text in result.warnings],
        "verdict": [] if result is None else [visible(text) for text in result.lines()],
        "under": [] if result is None else [visible(text) for text in result.under()],
        "primary": None if result is None else _cells(result.primary_cells()),
        "tasks": [{**_task(name, sides, compared.get(name)), "paired": _paired(result, compared.get(name))} for name in names],
        "colours": {visible(name): colour for name, colour in colours.items()},
        "questions": questions,
        "filters": filters(questions),
        "layers": layers(colours, questions),
        "truth": TRUTH_COLOUR,
        "asked": len({(task, r.sample_id) for files in sides.values() for task, rows in files.records.items() for r in rows}),
        "facts": [(visible(key), visible(value)) for key, value in facts],
    }


def _task(name: str, sides: Mapping[str, EvalFiles], compared: TaskComparison | None) -> dict[str, Any]:
    """Tables of one task."""
    records = {model: files.records[name] for model, files in sides.items() if name in files.records}
    summaries = {model: summarize(rows, _SEED) for model, rows in records.items()}
    return {
        "name": visible(name),
        "questions": len({r.sample_id for rows in records.values() for r in rows}),
        "limit": max((files.limits.get(name, 0) for files in sides.values()), default=0),
        "answers": max(len(rows) for rows in records.values()),
        "videos": next(iter(summaries.values())).clusters,
        "table": _table({visible(model): summary for model, summary in summaries.items()}),
        "figures": figures(headline(summaries.values()), summaries, model_colours(list(sides)), None),
        "parts": _table(_by_part(summaries)),
        "difference": None if compared is None else _difference(compared),
        "missing": [f"{visible(model)} was not evaluated on this task" for model in sides if model not in records],
    }


def _paired(result: FolderComparison | None, x: TaskComparison | None) -> dict[str, Any] | None:
    """Every metric of a task that both sides have, as the terminal shows them."""
    return None if result is None or x is None else _cells(result.metric_cells(x))


def _cells(cells: Cells) -> dict[str, Any]:
    header, *rows = [[visible(cell) for cell in row] for row in cells]
    return {"header": header, "rows": rows}


def _difference(x: TaskComparison) -> dict[str, Any]:
    """The gaps of a task by the header of their metric, and the questions that changed."""
    return {
        "better": x.better,
        "worse": x.worse,
        "cells": {LABELS[m]: gap_cell(m, gap) for m, gap in x.gaps.items() if m in LABELS},
        "holm": "" if x.primary is None or x.p_holm is None else f"{LABELS.get(x.primary, x.primary)}: p {p_text(x.p_holm)} after Holm",
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
            "cells": [mean_cell(m, summary) for m in columns],
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
    prompts = {name: prompt for files in sides.values() for name, prompt in files.prompts.items()}
    out: list[Question] = []
    for task in tasks:
        answered = by_sample({model: files.records[task] for model, files in sides.items() if task in files.records})
        wanted = [name for name in answered if name in pixels] or list(answered)[:WITHOUT_PIXELS]
        out += [question(len(out) + n, name, answered[name], colours, pixels.get(name), task, prompts) for n, name in enumerate(wanted)]
    return out
