"""What happened in a run, in the first sentences of its page: what the last stage moved and on which questions.

Differences are those of the paired comparison (`score.paired`) and are called what their intervals say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vlmrl.evals.score.levels import WORDS, difficulties, has_levels, ranked, score_label, whole_stages
from vlmrl.evals.score.measures import COMMON, LABELS, METRICS, applicable
from vlmrl.evals.score.paired import Comparison, Gap, Incomparable, compare, comparisons_of
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.summary import Summary, summarize
from vlmrl.evals.score.table import UNBOUNDED, difference_text, figure
from vlmrl.evals.score.values import is_scored
from vlmrl.extras.pages.documents.shapes import Doc, capital, estimate, stage_words, when

MOVED = 0.1
"""Least change of a share of answers that is told."""
BROKEN = 0.5
"""Share of readable answers below which the score says little of the model."""
OFTEN, SELDOM = 0.5, 0.1
"""A model thinks `only` on some questions if it does on this share of them, and at most on that share of the others."""


def main_metric(records: Sequence[Record]) -> str | None:
    """The first of the metrics that go by the type of the answers, or their score where there are several types; None where there is none
    from 0 to 1."""
    types = {r.answer_type for r in records}
    if len(types) > 1 and all(is_scored(r) for r in records):
        return "score"
    apart = (*COMMON, *UNBOUNDED, "score")
    own = (m for m in applicable(types) if m in METRICS and m not in apart)
    return next((m for m in own if any(METRICS[m](r) is not None for r in records)), None)


def noun(metric: str, records: Sequence[Record]) -> str:
    """The name of a metric in a sentence: `accuracy` where every answer is right or wrong."""
    return "accuracy" if metric in ("exact", "score") and score_label(records) == "accuracy" else LABELS[metric]


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The held-out evaluations of a run with their statistics, once for all that is said of them."""

    records: Mapping[str, Sequence[Record]]
    """By stage, in the order of evaluation; none is empty."""
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

    def of(self, metric: str) -> list[Doc]:
        """A metric after each stage."""
        return [{"name": when(name), **estimate(metric, self.summaries[name].metrics.get(metric))} for name in self.stages]

    def compared(self, before: str, after: str) -> Comparison | None:
        """Two evaluations; None where they are of different questions."""
        try:
            return self.comparisons.get((before, after)) or compare(self.records[before], self.records[after], self.seed)
        except Incomparable:
            return None


def evaluated(records: Mapping[str, Sequence[Record]], seed: int) -> Evaluated:
    """The statistics of evaluations. `seed` decides the resampling."""
    comparisons, refused = comparisons_of(records, seed)
    rows = next((records[name] for name in reversed(list(records))), [])
    metric = main_metric(rows) if rows else None
    return Evaluated(
        records=records,
        summaries={name: summarize(rows, seed) for name, rows in records.items()},
        comparisons=comparisons,
        refused=refused,
        metric=metric,
        label="" if metric is None else noun(metric, rows),
        seed=seed,
    )


def what_happened(x: Evaluated) -> list[str]:
    """One to three sentences; none without an evaluation."""
    if x.metric is None:
        return []
    names, metric, label = x.stages, x.metric, x.label
    first, last, summary = names[0], names[-1], x.summaries[names[-1]]
    asked = f"{summary.n} held-out question{'' if summary.n == 1 else 's'}"
    pairs = ((first, last), (names[-2], last)) if first != last else ()
    found = [known for pair in pairs if (known := x.compared(*pair)) is not None]
    if not found:
        shown = estimate(metric, summary.metrics[metric])
        return [f"{capital(label)} is {shown['text']} {shown['interval']}".rstrip() + f" {when(last)} on {asked}.", *_broken(last, summary)]
    whole, own = found[0], found[-1]
    if len(found) < 2 or metric not in own.gaps or metric not in whole.gaps:
        return _broken(last, summary)
    out = [f"{stage_words(last)} {_by_level(x, own) or _overall(metric, label, own.gaps[metric], asked)}."]
    if len(names) > 2:
        out.append(f"Altogether training {_overall(metric, label, whole.gaps[metric], asked)}.")
    return [*out, *_broken(last, summary)]


def _by_level(x: Evaluated, own: Comparison) -> str | None:
    """`raised hard questions from 0.34 to 1.00 and thinks only there`, where some questions moved and others did not, or by less than half
    as much; else None."""
    metric, union = x.metric or "", [r for name in x.stages[-2:] for r in x.records[name]]
    if not has_levels(union):
        return None
    key, values = next(((k, v) for k, v in (("category", ranked(union)), ("difficulty", difficulties(union))) if v), ("", []))
    parts = {value: own.parts[f"{key}={value}"].gaps for value in values if f"{key}={value}" in own.parts}
    sure = [value for value, gaps in parts.items() if metric in gaps and gaps[metric].sign]
    most = max((abs(parts[value][metric].difference) for value in sure), default=0.0)
    moved = [value for value in sure if abs(parts[value][metric].difference) >= max(MOVED, most / 2)]
    rest = [value for value in parts if value not in moved]
    if not moved or not rest or len({parts[value][metric].sign for value in moved}) > 1:
        return None
    way = "raised" if parts[moved[0]][metric].sign > 0 else "lowered"
    before, after = (figure(metric, _mean([parts[value][metric] for value in moved], side)) for side in ("a", "b"))
    out = f"{way} {_questions(key, moved)}{' most,' if len(sure) > len(moved) else ''} from {before} to {after}"
    thinks, elsewhere = (
        _mean([parts[value]["think_rate"] for value in some if "think_rate" in parts[value]], "b") for some in (moved, rest)
    )
    return f"{out} and thinks only there" if thinks >= OFTEN and elsewhere <= SELDOM else out


def _mean(gaps: Sequence[Gap], side: str) -> float:
    """Over all questions of some parts."""
    return sum(getattr(gap, side) * gap.n for gap in gaps) / max(1, sum(gap.n for gap in gaps))


def _questions(key: str, values: Sequence[str]) -> str:
    if all(value.lower() in WORDS for value in values):
        return f"{' and '.join(value.lower() for value in values)} questions"
    span = values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"
    return f"questions of {key} {span}"


def _overall(metric: str, label: str, gap: Gap, asked: str) -> str:
    """`raised mIoU from 0.572 to 0.814 (+0.242 [+0.200, +0.280]) on 600 held-out questions`, by what the interval says."""
    before, after, way = figure(metric, gap.a), figure(metric, gap.b), gap.sign
    if way:
        return f"{'raised' if way > 0 else 'lowered'} {label} from {before} to {after} ({difference_text(metric, gap)}) on {asked}"
    if not gap.differ:
        return f"did not move {label}: it is {after} before and after it on {asked}"
    return f"may have moved {label} or not: {before} before it, {after} after it ({difference_text(metric, gap)}) on {asked}"


def _broken(name: str, summary: Summary) -> list[str]:
    """A score of answers that mostly cannot be read is told as that."""
    readable, cut = summary.metrics.get("parse_rate"), summary.metrics.get("truncation_rate")
    if readable is None or readable.mean >= BROKEN:
        return []
    why = f"; {cut.mean:.0%} are cut off at the longest answer" if cut is not None and cut.mean >= BROKEN else ""
    share = "None" if readable.mean == 0 else f"Only {readable.mean:.0%}"
    return [f"{share} of the answers {when(name)} can be read{why}: the score says little of what the model knows."]
