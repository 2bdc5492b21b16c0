"""Documents of an evaluation and of a comparison."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import StorageError
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.paired import Gap
from vlmrl.evals.score.recipes import ONE_RUN
from vlmrl.evals.score.summary import Summary, summarize
from vlmrl.evals.score.table import figure, p_text, range_text, signed
from vlmrl.extras.pages.documents.happened import main_metric, noun
from vlmrl.extras.pages.documents.questions import held_of
from vlmrl.extras.pages.documents.run import results_table
from vlmrl.extras.pages.documents.shapes import Doc, card, cell, estimate, gap_cell, report, table
from vlmrl.extras.pages.documents.source import Source

SEED = 0
"""Of the bootstrap, as in `evals.ask.run`."""
MOST_FLIPS = 500
_GAP = {field.name for field in dataclasses.fields(Gap)}
Rows = list[list[str | Mapping[str, Any]]]


def summaries_of(source: Source) -> dict[str, Summary]:
    """Of an evaluation, by task."""
    return source.once("summaries", SEED, lambda: {name: summarize(rows, SEED) for name, rows in source.records.items()})


def tasks_of(source: Source) -> list[Doc]:
    """Each task with its primary metric."""
    out: list[Doc] = []
    for name, summary in summaries_of(source).items():
        rows = source.records[name]
        metric = main_metric(rows)
        said = estimate(metric or "", None if metric is None else summary.metrics[metric])
        out.append({"task": name, "metric": metric, "label": "" if metric is None else noun(metric, rows), "n": summary.n, **said})
    return out


def evaluation_doc(source: Source) -> Doc:
    """An evaluation: its tasks in words and in tables."""
    found, summaries, tasks = source.evaluation, summaries_of(source), tasks_of(source)
    limits = {name: limit for name, limit in found.limits.items() if name in summaries}
    said = [f"Of {name} the first {limit} rows were asked: a subset, not the benchmark." for name, limit in limits.items()]
    words = {(one["metric"], one["label"]) for one in tasks if one["metric"] is not None}
    named = dict(words) if len(words) == len(dict(words)) else {}  # one word for a metric, if all tasks have the same for it
    tables = [results_table("Tasks", summaries, "means with 95% intervals", named)] if summaries else []
    several = len(summaries) > 1
    parts = {f"{name}: {part}" if several else part: x for name, summary in summaries.items() for part, x in summary.parts.items()}
    tables += [results_table("By task, difficulty and category", parts, named=named)] if parts else []
    rows = [{**one, "name": f"{one['task']}, {one['label']}, n {one['n']}", "colour": 0} for one in tasks]
    return report(
        source.path.name,
        about=", ".join(filter(None, (found.model, found.suite))),
        said=said,
        cards=[card("Scores by task", rows, wide=True)] if rows else [],
        tables=tables,
        facts=[("folder", str(source.path)), ("suite", found.suite), ("weights", found.fingerprint[:16])],
        questions=f"questions/{source.name}",
    )


def comparison_doc(source: Source, sides: Sequence[Source]) -> Doc:
    """A comparison, from its `comparison.json`. `sides`: the two evaluations, where they are still there."""
    found, name = read_comparison(source.path), source.name
    try:
        a, b = models = [str(one) for one in found.get("models", ("A", "B"))]
        tasks = found["tasks"]
        if "models" in found:
            seeds = ", ".join(str(seed) for seed in found.get("only_seed_differs") or ())
            alike = f"; the two differ in nothing but run.seed ({seeds})" if seeds else ""
            tables = [_primary(tasks, models, f"{found.get('note', ONE_RUN)}{alike}")]
            tables += [_metrics(task, models) for task in tasks]
        else:
            tables = [_over_seeds(found)]
        return report(
            f"{b} against {a}",
            said=[verdict_of(found)],
            warnings=[str(text) for text in found["warnings"]],
            tables=[*tables, *_flips(name, tasks, models, sides)],
            facts=[(label, str(value)) for label, value in zip(models, found.get("paths", ()), strict=False)],
            questions=f"questions/{name}" if sides else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{source.path / 'comparison.json'}: not a comparison ({error!r}); compare again") from error


def read_comparison(path: Path) -> dict[str, Any]:
    """`comparison.json` of a folder."""
    file = path / "comparison.json"
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise StorageError(f"{file}: {error}; compare again") from error
    if not isinstance(value, dict):
        raise StorageError(f"{file}: not a JSON object; compare again")
    return value


def _gaps(task: Mapping[str, Any]) -> dict[str, Gap]:
    """The differences of a task, in the order of the metrics; its file has them by name."""
    gaps, order = task.get("gaps", {}), list(LABELS)
    names = sorted(gaps, key=lambda name: order.index(name) if name in order else len(order))
    return {name: Gap(**{key: value for key, value in gaps[name].items() if key in _GAP}) for name in names}


def verdict_of(found: Mapping[str, Any]) -> str:
    """What a comparison comes to, in a sentence."""
    bad = found.get("regressed") or []
    none = "no regression: no primary metric is worse with an interval over seeds that excludes 0"
    return str(found.get("verdict") or (f"regressed: {', '.join(bad)}" if bad else none))


def _over_seeds(found: Mapping[str, Any]) -> Doc:
    """The table of a comparison of two methods over seeds."""
    rows: Rows = []
    for x in found["tasks"]:
        m = x["metric"]
        change = cell(signed(m, x["difference"]), f"{range_text(m, x['low'], x['high'], x['why'])} p {p_text(x['p'])}")
        wide = range_text(m, x["wide_low"], x["wide_high"], x["wide_why"])
        by_seed = [" ".join(figure(m, value) for value in x[side]) for side in ("a_by_seed", "b_by_seed")]
        means = [figure(m, x["a"]), figure(m, x["b"])]
        rows.append([x["task"], str(x["questions"]), LABELS.get(m, m), *means, change, wide, p_text(x["p_holm"]), *by_seed])
    header = ["task", "n", "metric", "A", "B", "B - A", "over seeds and questions", "p (Holm)", "A by seed", "B by seed"]
    return table("Two methods over seeds", header, rows, f"95% intervals: {found['design']}")


def _cells(metric: str, gap: Gap) -> list[str | Mapping[str, Any]]:
    return [figure(metric, gap.a), figure(metric, gap.b), gap_cell(metric, gap)]


def _primary(tasks: Sequence[Mapping[str, Any]], models: Sequence[str], note: str) -> Doc:
    rows: Rows = []
    for task in tasks:
        gap = _gaps(task).get(task.get("primary", ""))
        if gap is None:
            rows.append([task["task"], str(task.get("n", "")), "no primary metric", "-", "-", "-", "-"])
            continue
        metric, holm = task["primary"], task.get("p_holm")
        rows.append([task["task"], str(gap.n), LABELS.get(metric, metric), *_cells(metric, gap), "-" if holm is None else p_text(holm)])
    return table("Primary metrics", ["task", "n", "metric", *models, "difference", "p (Holm)"], rows, note)


def _metrics(task: Mapping[str, Any], models: Sequence[str]) -> Doc:
    """Every metric of a task, without a score that repeats another."""
    shown = {metric: gap for metric, gap in _gaps(task).items() if metric != "score" or task.get("primary") == "score"}
    rows: Rows = [[LABELS.get(metric, metric), str(gap.n), *_cells(metric, gap), gap.test] for metric, gap in shown.items()]
    return table(task["task"], ["metric", "n", *models, "difference", "test"], rows)


def _flips(name: str, tasks: Sequence[Mapping[str, Any]], models: Sequence[str], sides: Sequence[Source]) -> list[Doc]:
    """The questions that changed, with what both sides said, and links to those that are shown."""
    contents = {r.sample_id: content for side in sides for content, by in held_of(side).rows.items() for rows in by.values() for r in rows}
    flips = [(task["task"], flip) for task in tasks for flip in task.get("flips", ())]
    rows: Rows = []
    for task, flip in flips[:MOST_FLIPS]:
        content, b = contents.get(flip["sample_id"]), cell(f"{flip['b']:.4g}", kind="better" if flip["b"] > flip["a"] else "worse")
        question = cell(flip["sample_id"], href=None if content is None else f"#/question/{content}?of={name}")
        rows.append([question, task, f"{flip['a']:.4g}", b, *(" / ".join(flip[key]) for key in ("texts_a", "texts_b"))])
    a, b = models
    note = f"{MOST_FLIPS} of {len(flips)}." if len(flips) > MOST_FLIPS else f"{len(flips)} of them."
    return [table("Questions that changed", ["question", "task", a, b, f"{a} said", f"{b} said"], rows, note)] if rows else []
