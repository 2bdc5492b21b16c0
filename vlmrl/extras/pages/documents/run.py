"""The document of a run: what happened in words, a card for each thing that moved, what to do next, and its tables."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.evals.score.baseline import constant_baseline
from vlmrl.evals.score.levels import METRICS as LEVEL_METRICS
from vlmrl.evals.score.levels import level_table
from vlmrl.evals.score.measures import LABELS, present
from vlmrl.evals.score.paired import Comparison
from vlmrl.evals.score.recipes import NOT_MEASURED
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.summary import Summary, summarize
from vlmrl.evals.score.table import COUNTS, figure, level_cell, level_labels, signed
from vlmrl.evals.score.timeshare import time_cells, time_shares
from vlmrl.evals.score.verdict import verdict
from vlmrl.extras.pages.documents.curves import LINES, matching, spoken
from vlmrl.extras.pages.documents.happened import Evaluated, evaluated, main_metric, noun, what_happened
from vlmrl.extras.pages.documents.shapes import Doc, capital, card, cell, estimate, gap_cell, mean_cell, report, stage_words, table, when
from vlmrl.extras.pages.documents.source import Points, Source
from vlmrl.run.listing import RunLine
from vlmrl.run.silent import silent_methods

TITLES = {"think_rate": "Thoughts", "tokens": "Length", "parse_rate": "Readable", "format_rate": "Form", "truncation_rate": "Cut off"}
MOST_CARDS = 5
"""Beside that of the primary metric."""
MOVED = 0.05
"""Least change that is a card: of a share, or of a count as a share of it."""
IDLE = 0.8
"""Share of groups without signal from which a run is told to ask other questions."""
CUT = 0.2
"""Share of answers that were cut off from which a run is told to allow longer ones."""


def evaluated_of(source: Source) -> Evaluated:
    """The statistics of a run's evaluations, computed anew only where there is another one."""
    records = source.records
    stamp = [(name, len(rows), id(rows)) for name, rows in records.items()]
    return source.once("evaluated", stamp, lambda: evaluated(records, source.seed))


def primary_of(source: Source) -> Doc | None:
    """The primary held-out number of a run's newest evaluation, and nothing else: a list of runs asks for it."""
    name = next(reversed(source.evaluations), None)
    rows = [] if name is None else source.records_of(name)

    def make() -> Doc | None:
        metric = main_metric(rows) if rows else None
        if name is None or metric is None:
            return None
        summary = summarize(rows, source.seed, parts=False, only=(metric,))
        said = {"metric": metric, "label": noun(metric, rows), "stage": when(name), "n": summary.n}
        return said | estimate(metric, summary.metrics[metric])

    return source.once("primary", (name, len(rows), id(rows)), make)


def where(line: RunLine) -> str:
    """Where a run is, in words; of a finished one that it is finished."""
    if line.status == "finished":
        return "finished"
    if line.stage is None:
        return "before its first step"
    step = f"step {line.step}" + ("" if line.steps is None else f" of {line.steps}")
    return f"{stage_words(line.stage)}, {step}"


def run_doc(source: Source) -> Doc:
    """The document of a run."""
    x, line = evaluated_of(source), source.line
    cards, unmoved = cards_of(x)
    tables = tables_of(source, x)  # says what cannot be read
    over = line.status == "finished"
    begun = "The run has ended without a held-out evaluation." if over else f"No held-out evaluation yet: {where(line)}."
    hint = "With eval.source in the recipe, questions are asked before training and after each stage."
    config = source.path / "config.yaml"
    return report(
        source.path.name,
        about="" if over else where(line),
        said=[*(what_happened(x) or [begun, hint]), *verdict(x.records, x.seed, x.comparisons)],
        warnings=list(dict.fromkeys([*source.problems, *x.refused, *silent_methods(source.metrics.columns)])),
        cards=[*cards[:1], *rewards_of(source), *cards[1:]],
        unmoved=unmoved,
        next=next_steps(source, x),
        tables=tables,
        facts=facts(source, x),
        config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "",
    )


def cards_of(x: Evaluated) -> tuple[list[Doc], list[str]]:
    """The primary metric after each stage, a card for each thing that moved, and the rest as texts."""
    if x.metric is None:
        return [], []
    summary, own = x.summaries[x.stages[-1]], _means(x, x.metric)
    asked = f"{capital(x.label)} on {summary.n} held-out question{'' if summary.n == 1 else 's'}"
    cards, unmoved = (
        [card(asked, x.of(x.metric), note=f"95% intervals over questions of this run; {NOT_MEASURED}.", wide=True)],
        list[str](),
    )
    for metric in dict.fromkeys(("think_rate", "tokens", *present([summary.metrics]))):
        values = _means(x, metric)
        if metric == x.metric or metric not in summary.metrics or values == own:
            continue
        if has_moved(x, metric) and len(cards) <= MOST_CARDS:
            cards.append(card(TITLES.get(metric, LABELS[metric]), x.of(metric), text=LABELS[metric], note=_change(x, metric)))
        elif metric != "think_rate" or any(values):
            unmoved.append(f"{LABELS[metric]} {figure(metric, values[-1])}")
    return cards, unmoved


def _means(x: Evaluated, metric: str) -> list[float]:
    return [value.mean for name in x.stages if (value := x.summaries[name].metrics.get(metric)) is not None]


def has_moved(x: Evaluated, metric: str) -> bool:
    """Whether a metric changed between two evaluations beyond doubt, and by enough to be said."""
    gaps = [comparison.gaps[metric] for comparison in x.comparisons.values() if metric in comparison.gaps]
    return any(gap.sign and abs(gap.difference) >= MOVED * (max(gap.a, gap.b) if metric in COUNTS else 1) for gap in gaps)


def _change(x: Evaluated, metric: str) -> str:
    first, last = x.stages[0], x.stages[-1]
    known = x.comparisons.get((first, last))
    gap = None if known is None else known.gaps.get(metric)
    return "" if gap is None else f"{signed(metric, gap.difference)} from {when(first)} to {when(last)}"


def rewards_of(source: Source) -> list[Doc]:
    """A card with each part of the reward at the end of the stage that has it, and where it came from; none without rewards."""
    given = [one for stage in source.stages.values() for one in stage.get("rewards") or [] if isinstance(one, dict)]
    weights = {str(one.get("name")): float(one.get("weight", 1.0) or 0.0) for one in given}
    rows: list[Doc] = []
    for name in matching(source.metrics.columns, LINES[0][2]):
        first, last = tenths(source.metrics.columns[name])
        weight = weights.get(name.split("/")[1], 1.0) if "/" in name else 1.0
        said = {"text": f"{last:.3f}", "interval": f"from {first:.3f}", "why": "", "colour": 0}
        shown = spoken(name) if weight == 1 else f"{spoken(name)} × {weight:g}"
        rows.append({"name": shown, "mean": last, "low": min(first, last), "high": max(first, last), **said})
    text = "Mean over sampled answers in the last tenth of the RL steps, and in the first."
    return [card("Parts of the reward", rows, text=text)] if rows else []


def tenths(points: Points) -> tuple[float, float]:
    """Means over the first and the last tenth of the steps."""
    values = [value for _, value in sorted(points.items())]
    tenth = max(1, len(values) // 10)
    return statistics.fmean(values[:tenth]), statistics.fmean(values[-tenth:])


def next_steps(source: Source, x: Evaluated) -> list[Doc]:
    """What to look at or to do, by what the run shows; each with a command or with a filter of the table of questions."""
    line, folder, columns = source.line, shlex.quote(str(source.path)), source.metrics.columns
    out: list[Doc] = []

    def add(text: str, command: str | None = None, where: str | None = None) -> None:
        out.append({"text": text, "command": command, "where": where})

    if line.status == "stopped":
        add(f"The run stopped at {where(line)}. The command that began it goes on from its last checkpoint.")
    if (idle := tenths(columns.get("frac_reward_zero_std", {0: 0.0}))[1]) >= IDLE:
        add(
            f"In the last steps {idle:.0%} of the groups had answers of equal reward, from which nothing is learnt: harder questions, more "
            "answers to each (rollout.num_generations), or a part of the reward that tells them apart."
        )
    if (cut := tenths(columns.get("completions/clipped_ratio", {0: 0.0}))[1]) >= CUT:
        add(f"In the last steps {cut:.0%} of the answers were cut off: raise rollout.max_new_tokens, or reward shorter ones.")
    before, last = x.stages[-2:] if len(x.stages) > 1 else ("", "")
    known = x.comparisons.get((before, last))
    if known is not None and known.worse:
        said = f"{known.worse} of {known.n} questions have a lower score {when(last)} than {when(before)}, {known.better} a higher one."
        add(said, where=f"score.{last} < score.{before}")
    if line.status == "finished" and x.metric is not None:
        add(f"One run with seed {x.seed}: {NOT_MEASURED}.", f"vlmrl train {folder}/config.yaml --seeds 1,2,3")
        add("Share the weights with this measured table.", f"vlmrl publish {folder} --dry-run")
    return out


def tables_of(source: Source, x: Evaluated) -> list[Doc]:
    """Results, by difficulty, differences, time."""
    out: list[Doc] = []
    named = {} if x.metric is None else {x.metric: x.label}
    if x.summaries:
        told = {when(name): summary for name, summary in x.summaries.items()}
        out.append(results_table("Held-out questions", told, "means with 95% intervals" + _constant(x.records), named))
    if levels := level_table(x.records, x.seed):
        header = ["questions", "n", *(f"{label} {when(stage)}" for stage in levels.stages for label in level_labels(levels))]
        cells = [(stage, metric) for stage in levels.stages for metric in LEVEL_METRICS]
        rows = [[row.name, str(row.n), *(cell(*level_cell(m, row.stages.get(stage))) for stage, m in cells)] for row in levels.rows]
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


def results_table(title: str, summaries: Mapping[str, Summary], note: str = "", named: Mapping[str, str] | None = None) -> Doc:
    """A row per model, a column per metric. `named`: what metrics are called in place of their labels."""
    columns = present(summary.metrics for summary in summaries.values())
    rows = [[name, str(s.n), *(mean_cell(m, s.metrics.get(m)) for m in columns)] for name, s in summaries.items()]
    return table(title, ["", "n", *((named or {}).get(m, LABELS[m]) for m in columns)], rows, note)


def differences_table(comparisons: Mapping[tuple[str, str], Comparison], named: Mapping[str, str]) -> Doc:
    """Pairs of evaluations as rows, metrics as columns."""
    shared = present(comparison.gaps for comparison in comparisons.values())
    metrics = [m for m in shared if all(m in c.gaps for c in comparisons.values())]
    rows: list[list[str | Doc]] = []
    for (a, b), c in comparisons.items():
        gaps = [gap_cell(m, c.gaps[m]) for m in metrics]
        rows.append([f"{when(a)} → {when(b)}", str(c.better), str(c.worse), *gaps])
    header = ["", "better", "worse", *(named.get(m, LABELS[m]) for m in metrics)]
    return table("Differences", header, rows, "paired by question, 95% intervals")


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
    tokens = sum(source.metrics.columns.get("tokens/forward", {}).values())
    out: list[tuple[str, Any]] = [
        ("folder", source.path),
        *((name, (config.get(section) or {}).get(key)) for name, section, key in (("model", "model", "path"), ("data", "data", "root"))),
        ("seed", x.seed),
        ("steps logged", max((last for _, last in source.metrics.stages.values()), default=0)),
        ("tokens in forward passes", f"{tokens:.4g}" if tokens else None),
        ("vlmrl", environment.get("vlmrl")),
        ("Python", environment.get("python")),
        *((name, packages[name]) for name in sorted(packages)),
        ("machine", " ".join(str(value) for value in (environment.get("machine") or {}).values())),
        ("accelerators", ", ".join(environment.get("accelerators") or []) or "none"),
        *((f"weights of {name}", rows[0].fingerprint[:16]) for name, rows in x.records.items()),
    ]
    return [(key, str(value)) for key, value in out if value not in (None, "")]
