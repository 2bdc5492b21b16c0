"""What a finished run shows: tables of its stages, comparisons between them, where the time went; and where to find what it made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from vlmrl.errors import EvaluationError
from vlmrl.evals.page import PAGES
from vlmrl.evals.score.baseline import constant_baseline
from vlmrl.evals.score.levels import level_table
from vlmrl.evals.score.paired import Comparison, comparisons_of
from vlmrl.evals.score.runfiles import read_run, seed_of
from vlmrl.evals.score.summary import summarize
from vlmrl.evals.score.table import Pair, comparison_cells, headline, level_cells, part_cells, summary_cells
from vlmrl.evals.score.terminal import table
from vlmrl.evals.score.timeshare import time_cells, time_shares
from vlmrl.evals.score.verdict import verdict
from vlmrl.run.ui import Ui

SHOWN = ("miou", "r1@0.3", "r1@0.5", "r1@0.7", "parse_rate", "think_rate", "tokens")


def show_results(path: Path, ui: Ui) -> list[str]:
    """Write the report and print the tables, with the numbers of the report, and last what the run has come to, which is returned. Without
    evaluation records there is nothing to compare, only time."""
    files = read_run(path)
    records = {name: rows for name, rows in files.records.items() if rows}
    come_to: list[str] = []
    if records:
        PAGES["run"](path)
        seed = seed_of(files)
        summaries = {name: summarize(rows, seed) for name, rows in records.items()}
        spans = any("miou" in summary.metrics for summary in summaries.values())
        levels = level_table(records, seed)
        own = ("miou", "r1@0.5") if spans else headline(summaries.values())
        columns = SHOWN if spans else None if levels is None else (*own, "parse_rate", "think_rate", "tokens")
        ui.show(table(summary_cells(summaries, columns), "held-out questions, 95% intervals"))
        if levels is not None:
            ui.show(table(level_cells(levels), "by how hard questions are, 95% intervals"))
        elif any(summary.parts for summary in summaries.values()):
            ui.show(table(part_cells(summaries), "by task and difficulty, 95% intervals"))
        comparisons, refused = comparisons_of(records, seed)
        compared = (*(own if levels is None else own[:1]), "think_rate", "tokens")
        shown = comparisons if levels is None else coarser(comparisons)
        ui.show(table(comparison_cells(shown, compared, parts=not spans), "paired differences, 95% intervals"))
        for line in refused:
            ui.say(line)
        golds = [(r.gold[0], r.gold[1]) for r in next(iter(records.values())) if r.answer_type == "time_span"]
        if golds:
            span, miou = constant_baseline(golds)
            ui.say(f"constant-answer baseline ({span[0]:.1f} to {span[1]:.1f} s): mIoU {miou:.3f}")
        first = [line["time/to_first_rl_step"] for line in files.metrics if "time/to_first_rl_step" in line]
        if first:
            ui.say(f"seconds from the start of the command to the first RL step: {first[0]:.1f}")
        ui.show(table(time_cells(time_shares(files.metrics)), "where the time went"))
        come_to = verdict(records, seed, comparisons)
        for line in come_to:
            ui.say(line)
    return come_to


def coarser(comparisons: Mapping[Pair, Comparison]) -> dict[Pair, Comparison]:
    """With the categories as their only parts, or the difficulties where there are no categories."""
    out: dict[Pair, Comparison] = {}
    for pair, x in comparisons.items():
        kind = "category=" if any(part.startswith("category=") for part in x.parts) else "difficulty="
        out[pair] = dataclasses.replace(x, parts={part: own for part, own in x.parts.items() if part.startswith(kind)})
    return out


def check_evaluations(path: Path) -> None:
    """Whether a finished run has all evaluations that it began; those that failed are in its metrics.

    Raises:
        EvaluationError: names the stages whose last evaluation failed.
    """
    failed: dict[str, float] = {}
    for line in read_run(path).metrics:
        if "eval/failed" in line:
            failed[str(line.get("stage"))] = line["eval/failed"]
    names = [name for name, count in failed.items() if count]
    if names:
        raise EvaluationError(
            f"{path}: the run is finished and its weights are whole, but the evaluation of {', '.join(names)} failed: the report lacks its "
            "numbers. The warnings above and the log say why; evaluate the weights in stages/ with `vlmrl eval`"
        )
