"""Documents of an evaluation and of a comparison."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vlmrl.errors import StorageError
from vlmrl.evals.score.measures import LABELS
from vlmrl.evals.score.paired import LOWER_IS_BETTER, Gap
from vlmrl.evals.score.recipes import ONE_RUN
from vlmrl.evals.score.summary import Summary, summarize
from vlmrl.evals.score.table import difference_text, figure, p_text, range_text, signed, visible
from vlmrl.extras.pages.documents.happened import main_metric, noun
from vlmrl.extras.pages.documents.questions import held_of
from vlmrl.extras.pages.documents.run import results_table
from vlmrl.extras.pages.documents.shapes import Doc, cell, estimate, gap_cell, table
from vlmrl.extras.pages.documents.source import Source

SEED = 0
"""Of the bootstrap, as in `evals.ask.run`."""
_GAP = {field.name for field in dataclasses.fields(Gap)}


def summaries_of(source: Source) -> dict[str, Summary]:
    """Of an evaluation, by task."""
    if "summaries" not in source.caches:
        source.caches["summaries"] = {name: summarize(rows, SEED) for name, rows in source.records.items()}
    return source.caches["summaries"]


def tasks_of(source: Source) -> list[Doc]:
    """Each task with its primary metric."""
    out: list[Doc] = []
    for name, summary in summaries_of(source).items():
        rows = source.records[name]
        metric = main_metric(summary, len({r.answer_type for r in rows}))
        said = estimate(metric or "", None if metric is None else summary.metrics[metric])
        out.append({"task": visible(name), "metric": metric, "label": "" if metric is None else noun(metric, rows), "n": summary.n, **said})
    return out


def evaluation_doc(source: Source) -> Doc:
    """An evaluation: its tasks in words and in tables."""
    found, summaries, tasks = source.evaluation, summaries_of(source), tasks_of(source)
    limits = {name: limit for name, limit in found.limits.items() if name in summaries}
    headline = [
        f"{one['label'][:1].upper()}{one['label'][1:]} {one['text']} {one['interval']}".strip()
        + f" on {one['n']} questions of {one['task']}."
        for one in tasks
    ]
    headline += [f"Of {visible(name)} the first {limit} rows were asked: a subset, not the benchmark." for name, limit in limits.items()]
    words = {(one["metric"], one["label"]) for one in tasks if one["metric"] is not None}
    named = dict(words) if len(words) == len(dict(words)) else {}  # one word for a metric, if all tasks have the same for it
    tables = [results_table("Tasks", summaries, "means with 95% intervals", named)] if summaries else []
    several = len(summaries) > 1
    parts = {f"{name}: {part}" if several else part: x for name, summary in summaries.items() for part, x in summary.parts.items()}
    return {
        "id": source.name,
        "name": visible(source.path.name),
        "model": visible(found.model),
        "suite": visible(found.suite),
        "headline": headline,
        "primary": {"tasks": tasks},
        "tables": tables + ([results_table("By task, difficulty and category", parts, named=named)] if parts else []),
        "facts": [
            ("folder", visible(str(source.path))),
            ("suite", visible(found.suite)),
            ("weights", visible(found.fingerprint[:16])),
        ],
        "questions": f"questions/{source.name}",
    }


def comparison_doc(name: str, path: Path, sides: Sequence[Source]) -> Doc:
    """A comparison, from its `comparison.json`.

    Args:
        sides: the two evaluations, where they are still there.

    Raises:
        StorageError: the file is damaged.
    """
    found = read_comparison(path)
    contents = {r.sample_id: content for side in sides for content, by in held_of(side).rows.items() for rows in by.values() for r in rows}
    try:
        models = [visible(str(one)) for one in found.get("models", ("A", "B"))]
        tasks = found["tasks"]
        single = "models" in found
        note = f"{found.get('note', ONE_RUN)}{_seeds(found.get('only_seed_differs'))}"
        tables = [_primary(tasks, models, note), *(_metrics(task, models) for task in tasks)] if single else [_over_seeds(found)]
        flips = [
            {**flip, "task": visible(task["task"]), "question": contents.get(flip["sample_id"]), "sample": visible(flip["sample_id"])}
            for task in tasks
            for flip in task.get("flips", ())
        ]
        return {
            "id": name,
            "name": visible(path.name),
            "models": models,
            "headline": [visible(verdict_of(found)), *(_sentence(task, models) for task in tasks if _decides(task) is not None)],
            "warnings": [visible(str(text)) for text in found["warnings"]],
            "tables": tables,
            "flips": [_visible(flip) for flip in flips],
            "facts": [(label, visible(str(value))) for label, value in zip(models, found.get("paths", ()), strict=False)],
            "questions": f"questions/{name}" if sides else None,
        }
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path / 'comparison.json'}: not a comparison ({error!r}); compare again") from error


def read_comparison(path: Path) -> dict[str, Any]:
    """`comparison.json` of a folder.

    Raises:
        StorageError: it is damaged.
    """
    file = path / "comparison.json"
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise StorageError(f"{file}: {error}; compare again") from error
    if not isinstance(value, dict):
        raise StorageError(f"{file}: not a JSON object; compare again")
    return value


def _gap(values: Mapping[str, Any]) -> Gap:
    """A difference from its file; those of earlier versions do not say how many pairs differ."""
    known = {key: value for key, value in values.items() if key in _GAP}
    return Gap(**{"differ": int(values["difference"] != 0 or values["low"] != values["high"]), **known})


def _decides(task: Mapping[str, Any]) -> Gap | None:
    """The primary metric of a task."""
    gaps = task.get("gaps", {})
    return _gap(gaps[task["primary"]]) if task.get("primary") in gaps else None


def _sentence(task: Mapping[str, Any], models: Sequence[str]) -> str:
    """`blink: accuracy 0.412 of a, 0.530 of b (+0.118 [...], p 0.002).`"""
    metric, gap = task["primary"], _decides(task)
    if gap is None:
        return ""
    change = f"{difference_text(metric, gap)}, p {p_text(gap.p)}"
    values = f"{figure(metric, gap.a)} of {models[0]}, {figure(metric, gap.b)} of {models[1]}"
    return f"{visible(task['task'])}: {LABELS.get(metric, metric)} {values} ({change})."


def verdict_of(found: Mapping[str, Any]) -> str:
    """What a comparison comes to, in a sentence."""
    bad = found.get("regressed") or []
    none = "no regression: no primary metric is worse with an interval over seeds that excludes 0"
    return str(found.get("verdict") or (f"regressed: {', '.join(bad)}" if bad else none))


def _seeds(both: Sequence[int] | None) -> str:
    """What is to be said of two runs of one recipe."""
    return "" if not both else f"; the two differ in nothing but run.seed ({', '.join(map(str, both))})"


def _over_seeds(found: Mapping[str, Any]) -> Doc:
    """The table of a comparison of two methods over seeds."""
    rows: list[list[str | Mapping[str, Any]]] = []
    for x in found["tasks"]:
        m = x["metric"]
        change = cell(signed(m, x["difference"]), f"{range_text(m, x['low'], x['high'], x['why'])} p {p_text(x['p'])}")
        wide = range_text(m, x["wide_low"], x["wide_high"], x["wide_why"])
        by_seed = [" ".join(figure(m, value) for value in x[side]) for side in ("a_by_seed", "b_by_seed")]
        rows.append(
            [
                x["task"],
                str(x["questions"]),
                LABELS.get(m, m),
                figure(m, x["a"]),
                figure(m, x["b"]),
                change,
                wide,
                p_text(x["p_holm"]),
                *by_seed,
            ]
        )
    header = ["task", "n", "metric", "A", "B", "B - A", "over seeds and questions", "p (Holm)", "A by seed", "B by seed"]
    return table("Two methods over seeds", header, rows, f"95% intervals: {found['design']}")


def _primary(tasks: Sequence[Mapping[str, Any]], models: Sequence[str], note: str) -> Doc:
    rows: list[list[str | Mapping[str, Any]]] = []
    for task in tasks:
        gap = _decides(task)
        if gap is None:
            rows.append([task["task"], str(task.get("n", "")), "no primary metric", "-", "-", "-", "-"])
            continue
        metric, holm = task["primary"], task.get("p_holm")
        values = [figure(metric, gap.a), figure(metric, gap.b), gap_cell(metric, gap, lower_is_better=metric in LOWER_IS_BETTER)]
        rows.append([task["task"], str(gap.n), LABELS.get(metric, metric), *values, "-" if holm is None else p_text(holm)])
    return table("Primary metrics", ["task", "n", "metric", *models, "difference", "p (Holm)"], rows, note)


def _metrics(task: Mapping[str, Any], models: Sequence[str]) -> Doc:
    """Every metric of a task; of a comparison over seeds what its file says of the task."""
    rows: list[list[str | Mapping[str, Any]]] = []
    gaps, order = task.get("gaps", {}), list(LABELS)
    for metric in sorted(gaps, key=lambda name: order.index(name) if name in order else len(order)):  # its file has them by name
        gap = _gap(gaps[metric])
        if metric == "score" and task.get("primary") != "score":
            continue  # it repeats another
        cells = [figure(metric, gap.a), figure(metric, gap.b), gap_cell(metric, gap, lower_is_better=metric in LOWER_IS_BETTER)]
        rows.append([LABELS.get(metric, metric), str(gap.n), *cells, gap.test])
    return table(task["task"], ["metric", "n", *models, "difference", "test"], rows)


def _visible(value: Any) -> Any:
    """All texts within a value, with their invisible characters spelled out."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {key: _visible(one) for key, one in value.items()}
    return [_visible(one) for one in value] if isinstance(value, list) else value
