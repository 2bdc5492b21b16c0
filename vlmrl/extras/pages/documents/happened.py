"""What happened in a run, in the first sentences of its page: what the last stage moved, on which questions, and what it cost.

Differences are those of the paired comparison (`score.paired`) and are called what their intervals say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vlmrl.evals.score.levels import WORDS, difficulties, has_levels, ranked, score_label, whole_stages
from vlmrl.evals.score.measures import COMMON, LABELS, METRICS, applicable
from vlmrl.evals.score.paired import Comparison, Gap, Incomparable, compare
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.summary import Summary, summarize
from vlmrl.evals.score.table import UNBOUNDED, difference_text, figure
from vlmrl.evals.score.values import is_scored
from vlmrl.extras.pages.documents.shapes import capital, estimate, stage_words, when

MOVED = 0.1
"""Least change of a share of answers, and of the length of answers as a share, that is told beside the score."""
BROKEN = 0.5
"""Share of readable answers below which the score says little of the model."""
OFTEN, SELDOM = 0.5, 0.1
"""A model thinks `only` on some questions if it does on this share of them, and at most on that share of the others."""

Records = Mapping[str, Sequence[Record]]


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


def what_happened(records: Records, seed: int, comparisons: Mapping[tuple[str, str], Comparison] | None = None) -> list[str]:
    """One to five sentences; none without an evaluation.

    Args:
        records: by stage, in the order of evaluation.
        seed: decides the resampling.
        comparisons: those that are known, with the same seed.
    """
    names = whole_stages(name for name, rows in records.items() if rows)
    if not names:
        return []
    first, last = names[0], names[-1]
    summary, metric = summarize(records[last], seed, parts=False), main_metric(records[last])
    if metric is None:
        return []
    label, asked = noun(metric, records[last]), f"{summary.n} held-out question{'' if summary.n == 1 else 's'}"
    pairs = ((first, last), (names[-2], last)) if first != last else ()
    found = [x for pair in pairs for x in [_compared(records, pair, seed, comparisons or {})] if x is not None]
    if not found:
        shown = estimate(metric, summary.metrics[metric])
        return [f"{capital(label)} is {shown['text']} {shown['interval']}".rstrip() + f" {when(last)} on {asked}.", *_broken(last, summary)]
    whole, own = found[0], found[-1]
    if len(found) < 2 or metric not in own.gaps or metric not in whole.gaps:
        return _broken(last, summary)
    out = [f"{stage_words(last)} {_by_level(records, names, metric, own) or _overall(metric, label, own.gaps[metric], asked)}."]
    if len(names) > 2:
        out.append(_since(metric, label, whole.gaps[metric], when(first)))
    told = "thinks" in out[0]
    return [*out, *_broken(last, summary), *([] if told else _thoughts(whole, when(first))), *_length(whole, when(first))]


def _compared(records: Records, pair: tuple[str, str], seed: int, known: Mapping[tuple[str, str], Comparison]) -> Comparison | None:
    try:
        return known.get(pair) or compare(records[pair[0]], records[pair[1]], seed)
    except Incomparable:
        return None


def _by_level(records: Records, names: Sequence[str], metric: str, own: Comparison) -> str | None:
    """`raised hard questions from 0.34 to 1.00 and thinks only there`, where some questions moved and others did not, or by less than half
    as much; else None."""
    union = [r for name in names[-2:] for r in records[name]]
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


def _since(metric: str, label: str, gap: Gap, then: str) -> str:
    """The whole of the training, in a sentence."""
    before, after, way = figure(metric, gap.a), figure(metric, gap.b), gap.sign
    if not gap.differ:
        return f"{capital(label)} is where it was {then}: {after}."
    if not way:
        return f"Against {before} {then}, {label} of {after} is no difference that is decided ({difference_text(metric, gap)})."
    return f"{capital(label)} was {before} {then} and is {after} ({difference_text(metric, gap)})."


def _broken(name: str, summary: Summary) -> list[str]:
    """A score of answers that mostly cannot be read is told as that."""
    readable, cut = summary.metrics.get("parse_rate"), summary.metrics.get("truncation_rate")
    if readable is None or readable.mean >= BROKEN:
        return []
    why = f"; {cut.mean:.0%} are cut off at the longest answer" if cut is not None and cut.mean >= BROKEN else ""
    share = "None" if readable.mean == 0 else f"Only {readable.mean:.0%}"
    return [f"{share} of the answers {when(name)} can be read{why}: the score says little of what the model knows."]


def _thoughts(known: Comparison, then: str) -> list[str]:
    gap = known.gaps.get("think_rate")
    if gap is None or abs(gap.difference) < MOVED or not gap.sign:
        return []
    if gap.b == 0:
        return [f"Thoughts are gone: {gap.a:.0%} of the answers had one {then}, none has now."]
    return [f"{gap.b:.0%} of the answers have a thought, {gap.a:.0%} had one {then}."]


def _length(known: Comparison, then: str) -> list[str]:
    gap = known.gaps.get("tokens")
    if gap is None or not gap.sign or abs(gap.difference) < MOVED * max(gap.a, gap.b):
        return []
    return [f"An answer has {figure('tokens', gap.b)} tokens, {figure('tokens', gap.a)} {then}."]
