"""The document of a run: what happened in words, a card for each thing that moved, what to do next, and its tables."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.evals.score.baseline import constant_baseline
from vlmrl.evals.score.levels import METRICS as LEVEL_METRICS
from vlmrl.evals.score.levels import level_table, whole_stages
from vlmrl.evals.score.measures import LABELS, present
from vlmrl.evals.score.paired import LOWER_IS_BETTER, Comparison, comparisons_of
from vlmrl.evals.score.recipes import NOT_MEASURED
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.summary import Summary, summarize
from vlmrl.evals.score.table import COUNTS, figure, level_labels, visible
from vlmrl.evals.score.timeshare import time_cells, time_shares
from vlmrl.evals.score.verdict import verdict
from vlmrl.extras.pages.documents.curves import LINES, matching, points_of, spoken, stage_bands
from vlmrl.extras.pages.documents.happened import main_metric, main_metric_of, noun, what_happened
from vlmrl.extras.pages.documents.shapes import Doc, cell, estimate, gap_cell, mean_cell, stage_words, table, when
from vlmrl.extras.pages.documents.source import Source, stages_of
from vlmrl.run.listing import RunLine

TITLES = {"think_rate": "Thoughts", "tokens": "Length", "parse_rate": "Readable", "format_rate": "Form", "truncation_rate": "Cut off"}
MOST_CARDS = 6
MOVED = 0.05
"""Least change that is a card: of a share, or of a count as a share of it."""
IDLE = 0.8
"""Share of groups without signal from which a run is told to ask other questions."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The held-out evaluations of a run with their statistics, once for all that is said of them."""

    records: Mapping[str, Sequence[Record]]
    summaries: Mapping[str, Summary]
    comparisons: Mapping[tuple[str, str], Comparison]
    refused: Sequence[str]
    metric: str | None
    """The primary one."""
    label: str
    seed: int

    @property
    def stages(self) -> list[str]:
        """Those at the end of a stage, and before the first."""
        return whole_stages(self.records)


def evaluated(source: Source) -> Evaluated:
    """The statistics of a run's evaluations, computed anew only where there is another one."""
    records = source.records
    stamp = [(name, len(rows), id(rows)) for name, rows in records.items()]
    if source.caches.get("evaluated", (None,))[0] != stamp:
        summaries = {name: summarize(rows, source.seed) for name, rows in records.items()}
        comparisons, refused = comparisons_of(records, source.seed)
        last = next(reversed(summaries.values()), None)
        rows = next(reversed(records.values()), [])
        metric = None if last is None else main_metric(last, len({r.answer_type for r in rows}))
        label = "" if metric is None else noun(metric, rows)
        value = Evaluated(
            records=records, summaries=summaries, comparisons=comparisons, refused=refused, metric=metric, label=label, seed=source.seed
        )
        source.caches["evaluated"] = stamp, value
    return source.caches["evaluated"][1]


def primary_of(source: Source) -> Doc | None:
    """The primary held-out number of a run's newest evaluation, and nothing else: a list of runs asks for it."""
    names = source.evaluations
    rows = source.records_of(names[-1]) if names else []
    if not rows:
        return None
    name, stamp = names[-1], (names[-1], len(rows), id(rows))
    if source.caches.get("primary", (None,))[0] != stamp:
        metric = main_metric_of(rows)
        summary = summarize(rows, source.seed, parts=False, only=() if metric is None else (metric,))
        said = None if metric is None else {"metric": metric, "label": noun(metric, rows), "stage": when(name), "n": summary.n}
        source.caches["primary"] = stamp, None if said is None or metric is None else said | estimate(metric, summary.metrics[metric])
    return source.caches["primary"][1]


def where(line: RunLine) -> str:
    """Where a run is, in words; of a finished one that it is finished."""
    if line.status == "finished":
        return "finished"
    if line.stage is None:
        return "before its first step"
    step = f"step {line.step}" + ("" if line.steps is None else f" of {line.steps}")
    return f"{stage_words(line.stage)}, {step}"


def run_doc(source: Source, state: Doc) -> Doc:
    """The document of a run.

    Args:
        state: of the list of runs.
    """
    x = evaluated(source)
    cards, unmoved = cards_of(x)
    tables = tables_of(source, x)
    happened = what_happened(x.records, x.seed, x.comparisons)
    return {
        "id": source.name,
        "name": visible(source.path.name),
        "state": state,
        "happened": [visible(text) for text in happened or [_begun(source)]],
        "detail": [visible(text) for text in verdict(x.records, x.seed, x.comparisons)],
        "warnings": [visible(text) for text in dict.fromkeys([*source.problems, *x.refused])],
        "next": next_steps(source, x),
        "primary": primary_doc(x),
        "cards": cards,
        "unmoved": unmoved,
        "rewards": rewards_of(source),
        "stages": stage_bands(source),
        "tables": tables,
        "facts": facts(source, x),
        "config": visible(_text(source)),
        "curves": f"curves/{source.name}",
        "metrics": f"metrics/{source.name}",
        "questions": f"questions/{source.name}",
        "groups": len(source.kept),
    }


def _begun(source: Source) -> str:
    line = source.line
    return (
        f"No held-out evaluation yet: {where(line)}." if line.status != "finished" else "The run has ended without a held-out evaluation."
    )


def primary_doc(x: Evaluated) -> Doc | None:
    """The primary metric at each stage."""
    if x.metric is None:
        return None
    last = x.summaries[list(x.summaries)[-1]]
    return {"metric": x.metric, "label": x.label, "n": last.n, "clusters": last.clusters, "stages": _by_stage(x, x.metric)}


def _by_stage(x: Evaluated, metric: str) -> list[Doc]:
    return [{"stage": visible(name), "words": when(name), **estimate(metric, x.summaries[name].metrics.get(metric))} for name in x.stages]


def cards_of(x: Evaluated) -> tuple[list[Doc], list[str]]:
    """A card for each thing that moved, the primary metric first, and the rest as texts."""
    if x.metric is None:
        return [], []
    summary = x.summaries[x.stages[-1]]
    own = [value.mean for name in x.stages for value in [x.summaries[name].metrics.get(x.metric)] if value is not None]
    cards, unmoved = [_card(x, x.metric, x.label[:1].upper() + x.label[1:], True)], list[str]()
    for metric in (*("think_rate", "tokens"), *(m for m in present([summary.metrics]) if m not in ("think_rate", "tokens"))):
        values = [value.mean for name in x.stages for value in [x.summaries[name].metrics.get(metric)] if value is not None]
        if metric == x.metric or metric not in summary.metrics or values == own:
            continue
        if has_moved(x, metric) and len(cards) < MOST_CARDS:
            cards.append(_card(x, metric, TITLES.get(metric, LABELS[metric]), True))
        elif not (metric == "think_rate" and not any(values)):
            unmoved.append(f"{LABELS[metric]} {figure(metric, values[-1])}")
    return cards, unmoved


def has_moved(x: Evaluated, metric: str) -> bool:
    """Whether a metric changed between two evaluations beyond doubt, and by enough to be said."""
    gaps = [comparison.gaps[metric] for comparison in x.comparisons.values() if metric in comparison.gaps]
    return any(gap.sign and abs(gap.difference) >= MOVED * (max(gap.a, gap.b) if metric in COUNTS else 1) for gap in gaps)


def _card(x: Evaluated, metric: str, title: str, moved: bool) -> Doc:
    names = x.stages
    known = x.comparisons.get((names[0], names[-1])) if len(names) > 1 else None
    gap = None if known is None else known.gaps.get(metric)
    note = (
        ""
        if gap is None
        else "as before training"
        if not gap.difference
        else f"{gap.difference:+.{1 if metric in COUNTS else 3}f} since {when(names[0])}"
    )
    return {"title": title, "label": x.label if metric == x.metric else LABELS[metric], "metric": metric, "moved": moved} | {
        "stages": _by_stage(x, metric),
        "note": note.replace("since before", "against before"),
    }


def rewards_of(source: Source) -> list[Doc]:
    """Each part of the reward at the beginning and at the end of the stage that has it: means over a tenth of its steps."""
    weights: dict[str, float] = {}
    for stage in stages_of(source.config):
        listed: Any = stage.get("rewards") or []
        for one in listed:
            if isinstance(one, dict) and isinstance(one.get("name"), str):
                weights[str(one["name"])] = float(one.get("weight", 1.0) or 0.0)
    out: list[Doc] = []
    for name in matching(source.metrics.columns, LINES[0][2]):
        points = points_of(source, name)
        values = [points[step] for step in sorted(points)]
        tenth = max(1, len(values) // 10)
        first, last = statistics.fmean(values[:tenth]), statistics.fmean(values[-tenth:])
        out.append(
            {
                "name": visible(spoken(name)),
                "weight": weights.get(name.split("/")[1]) if "/" in name else None,
                "first": first,
                "last": last,
            }
        )
    return out


def next_steps(source: Source, x: Evaluated) -> list[Doc]:
    """What to look at or to do, by what the run shows; each with a command or with a filter of the table of questions."""
    line, folder = source.line, shlex.quote(str(source.path))
    out: list[Doc] = []

    def add(text: str, command: str | None = None, where: str | None = None) -> None:
        out.append({"text": visible(text), "command": command, "where": where})

    if line.status == "stopped":
        add(f"The run stopped at {where(line)}. The command that began it goes on from its last checkpoint.")
    idle = _last_tenth(source, "frac_reward_zero_std")
    if idle is not None and idle >= IDLE:
        add(
            f"In the last steps {idle:.0%} of the groups had answers of equal reward, from which nothing is learnt: harder questions, more "
            "answers to each (rollout.num_generations), or a part of the reward that tells them apart."
        )
    cut = _last_tenth(source, "completions/clipped_ratio")
    if cut is not None and cut >= 0.2:
        add(f"In the last steps {cut:.0%} of the answers were cut off: raise rollout.max_new_tokens, or reward shorter ones.")
    if len(x.stages) > 1:
        before, last = x.stages[-2:]
        known = x.comparisons.get((before, last))
        if known is not None and known.worse:
            rule = f"score.{last} < score.{before}"
            add(
                f"{known.worse} of {known.n} questions have a lower score {when(last)} than {when(before)}, {known.better} a higher one.",
                None,
                rule,
            )
    if line.status == "finished" and x.metric is not None:
        add(f"One run with seed {x.seed}: {NOT_MEASURED}.", f"vlmrl train {folder}/config.yaml --seeds 1,2,3")
        add("Share the weights with this measured table.", f"vlmrl publish {folder} --dry-run")
    return out


def _last_tenth(source: Source, name: str) -> float | None:
    if name not in source.metrics.columns:
        return None
    values = source.metrics.columns[name][1]
    return statistics.fmean(values[-max(1, len(values) // 10) :])


def tables_of(source: Source, x: Evaluated) -> list[Doc]:
    """Results, by difficulty, differences, time."""
    out: list[Doc] = []
    named = {} if x.metric is None else {x.metric: x.label}
    if x.summaries:
        told = {when(name): summary for name, summary in x.summaries.items()}
        out.append(results_table("Held-out questions", told, "means with 95% intervals" + _constant(x.records), named))
    if levels := level_table(x.records, x.seed):
        labels, stages = level_labels(levels), levels.stages
        header = ["questions", "n", *(f"{label} {when(stage)}" for stage in stages for label in labels)]
        rows = [
            [row.name, str(row.n), *(_level_cell(m, row.stages.get(stage)) for stage in stages for m in LEVEL_METRICS)]
            for row in levels.rows
        ]
        out.append(table("By how hard questions are", header, rows))
    elif any(summary.parts for summary in x.summaries.values()):
        parts = {f"{part}, {when(name)}": y for name, summary in x.summaries.items() for part, y in summary.parts.items()}
        out.append(results_table("By task and difficulty", parts, named=named))
    if x.comparisons:
        out.append(differences_table(x.comparisons, named))
    lines = source.lines
    if any(key.startswith("time/") for line in lines for key in line):
        header, *rows = time_cells(time_shares(lines))
        out.append(table("Where the time went", header, rows))
    return out


def _level_cell(metric: str, summary: Summary | None) -> Doc:
    found = None if summary is None else summary.metrics.get(metric)
    shown = estimate(metric, found)
    return cell(shown["text"], shown["interval"] if metric == "score" else "", dim=found is None)


def results_table(title: str, summaries: Mapping[str, Summary], note: str = "", named: Mapping[str, str] | None = None) -> Doc:
    """A row per model, a column per metric. `named`: what metrics are called in place of their labels."""
    columns = present(summary.metrics for summary in summaries.values())
    rows = [[name, str(s.n), *(mean_cell(m, s.metrics.get(m)) for m in columns)] for name, s in summaries.items()]
    return table(title, ["", "n", *((named or {}).get(m, LABELS[m]) for m in columns)], rows, note)


def differences_table(comparisons: Mapping[tuple[str, str], Comparison], named: Mapping[str, str]) -> Doc:
    """Pairs of evaluations as rows, metrics as columns."""
    shared = present(comparison.gaps for comparison in comparisons.values())
    metrics = [m for m in shared if all(m in c.gaps for c in comparisons.values())]
    rows = [
        [
            f"{when(a)} → {when(b)}",
            str(c.better),
            str(c.worse),
            *(gap_cell(m, c.gaps[m], lower_is_better=m in LOWER_IS_BETTER) for m in metrics),
        ]
        for (a, b), c in comparisons.items()
    ]
    return table(
        "Differences", ["", "better", "worse", *(named.get(m, LABELS[m]) for m in metrics)], rows, "paired by question, 95% intervals"
    )


def _constant(records: Mapping[str, Sequence[Record]]) -> str:
    """What the best constant answer would score, where answers are spans of time."""
    rows = next(iter(records.values()), [])
    if not rows or any(r.answer_type != "time_span" for r in rows):
        return ""
    (start, end), miou = constant_baseline([(r.gold[0], r.gold[1]) for r in rows])
    return f"; always answering {start:.1f} to {end:.1f} s has mIoU {miou:.3f}"


def facts(source: Source, x: Evaluated) -> list[tuple[str, str]]:
    """What is needed to do it again."""
    config, environment = source.config, source.environment
    packages: Any = environment.get("packages") or {}
    tokens = sum(source.metrics.columns.get("tokens/forward", ([], []))[1])
    out: list[tuple[str, Any]] = [
        ("folder", source.path),
        *((name, (config.get(section) or {}).get(key)) for name, section, key in (("model", "model", "path"), ("data", "data", "root"))),
        ("seed", x.seed),
        ("steps logged", max(source.metrics.ends.values(), default=0)),
        ("tokens in forward passes", f"{tokens:.4g}" if tokens else None),
        ("vlmrl", environment.get("vlmrl")),
        ("Python", environment.get("python")),
        *((name, packages[name]) for name in sorted(packages)),
        ("machine", " ".join(str(value) for value in (environment.get("machine") or {}).values())),
        ("accelerators", ", ".join(environment.get("accelerators") or []) or "none"),
        *((f"weights of {name}", rows[0].fingerprint[:16]) for name, rows in x.records.items()),
    ]
    return [(visible(key), visible(str(value))) for key, value in out if value not in (None, "")]


def _text(source: Source) -> str:
    path = source.path / "config.yaml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
