"""What happened in a run, in the first sentence of its report: the last model against the first, on the same questions.

Differences are those of the paired comparison (`score.paired`) and are called what their intervals say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vlmrl.evals.score.levels import whole_stages
from vlmrl.evals.score.measures import COMMON, LABELS, present
from vlmrl.evals.score.paired import Comparison, Gap, Incomparable, compare
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.summary import Summary, summarize
from vlmrl.evals.score.table import UNBOUNDED, difference_text, figure, interval_text

MOVED = 0.1
"""Least change of a share of answers that is told beside the score."""
BROKEN = 0.5
"""Share of readable answers below which the score says little of the model."""


def main_metric(summary: Summary, answer_types: int) -> str | None:
    """The first of the metrics that go by the type of the answers, or their score where there are several types; None where there is none
    from 0 to 1."""
    if answer_types > 1 and "score" in summary.metrics:
        return "score"
    return next((m for m in present([summary.metrics]) if m not in COMMON and m not in UNBOUNDED and m in summary.metrics), None)


def what_happened(
    records: Mapping[str, Sequence[Record]], seed: int, comparisons: Mapping[tuple[str, str], Comparison] | None = None
) -> list[str]:
    """One to four sentences; none without an evaluation.

    Args:
        records: by stage, in the order of evaluation.
        seed: decides the resampling.
        comparisons: those that are known, with the same seed.
    """
    names = whole_stages(name for name, rows in records.items() if rows)
    if not names:
        return []
    first, last = names[0], names[-1]
    summary = summarize(records[last], seed, parts=False)
    metric = main_metric(summary, len({r.answer_type for r in records[last]}))
    if metric is None:
        return []
    asked = f"{summary.n} held-out question{'' if summary.n == 1 else 's'}"
    if first == last:
        return [
            f"{_model(last)} has {LABELS[metric]} {interval_text(metric, summary.metrics[metric])} on {asked}.",
            *_broken(last, summary),
        ]
    try:
        known = (comparisons or {}).get((first, last)) or compare(records[first], records[last], seed)
    except Incomparable:
        return [
            f"{_model(last)} has {LABELS[metric]} {interval_text(metric, summary.metrics[metric])} on {asked}.",
            *_broken(last, summary),
        ]
    whole = known.gaps.get(metric)
    if whole is None:
        return []
    out = [f"From {first} to {last}, {_moved(metric, whole)} on {asked}.", *_broken(last, summary)]
    return [*out, *_of_last_stage(names, records, seed, metric, comparisons or {}, whole), *_thoughts(known, last)]


def _model(name: str) -> str:
    return "The model before training" if name == "base" else f"The model after {name}"


def _moved(metric: str, gap: Gap) -> str:
    """`mIoU rose from 0.572 to 0.814 (+0.242 [+0.200, +0.280])`, by what the interval says."""
    label, before, after = LABELS[metric], figure(metric, gap.a), figure(metric, gap.b)
    if not gap.differ:
        return f"{label} stayed {after}"
    if gap.sign:
        return f"{label} {'rose' if gap.sign > 0 else 'fell'} from {before} to {after} ({difference_text(metric, gap)})"
    return f"{label} was {before} and is {after}, a difference that is not decided ({difference_text(metric, gap)})"


def _of_last_stage(
    names: Sequence[str],
    records: Mapping[str, Sequence[Record]],
    seed: int,
    metric: str,
    comparisons: Mapping[tuple[str, str], Comparison],
    whole: Gap,
) -> list[str]:
    """What the last of several stages did of the `whole` change, unless nothing has changed."""
    if len(names) < 3:
        return []
    before, last = names[-2:]
    try:
        own = comparisons.get((before, last)) or compare(records[before], records[last], seed)
    except Incomparable:
        return []
    if metric not in own.gaps or not (whole.differ or own.gaps[metric].differ):
        return []
    return [f"In the last stage, {last}, {_moved(metric, own.gaps[metric])}."]


def _broken(name: str, summary: Summary) -> list[str]:
    """A score of answers that mostly cannot be read is told as that."""
    readable, cut = summary.metrics.get("parse_rate"), summary.metrics.get("truncation_rate")
    if readable is None or readable.mean >= BROKEN:
        return []
    why = f"; {_percent(cut.mean)} are cut off at the longest answer" if cut is not None and cut.mean >= BROKEN else ""
    share = "None" if readable.mean == 0 else f"Only {_percent(readable.mean)}"
    return [f"{share} of the answers after {name} can be read{why}: the score says little of what the model knows."]


def _thoughts(known: Comparison, last: str) -> list[str]:
    gap = known.gaps.get("think_rate")
    if gap is None or abs(gap.b - gap.a) < MOVED or not gap.sign:
        return []
    if gap.b == 0:
        return [f"Thoughts vanished: {_percent(gap.a)} of the answers had one, and none has after {last}."]
    return [f"{_percent(gap.b)} of the answers have a thought ({_percent(gap.a)} before)."]


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
