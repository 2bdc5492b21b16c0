"""Summaries of records: the mean of every metric with its 95% interval, over all questions and by task, difficulty and category.

Intervals are those of `metrics.intervals`: Wilson's of what is right or wrong, else BCa over media. Numbers do not depend on the order of
the records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlmrl import rng
from vlmrl.evals.score.measures import parts_of
from vlmrl.evals.score.records import Record, by_sample
from vlmrl.evals.score.values import AVERAGES, Answers, metric_values

if TYPE_CHECKING:
    from vlmrl.metrics.intervals import ConfidenceInterval


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean and its 95% interval."""

    mean: float
    low: float | None
    """None where there is no interval."""
    high: float | None
    method: str = ""
    """`Wilson`, `BCa` or `percentile`; empty without an interval."""
    why: str = ""
    """Why there is none."""

    @classmethod
    def of(cls, mean: float, bounds: ConfidenceInterval) -> Interval:
        """Put a mean and its bounds together."""
        return cls(mean=mean, low=bounds.low, high=bounds.high, method=bounds.method, why=bounds.why)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One model on one set of questions."""

    n: int
    """Questions; each may have several answers."""
    clusters: int
    """Distinct videos."""
    metrics: Mapping[str, Interval]
    """By the names of `METRICS` and `values.GROUPED`, those that apply to at least one record; empty without records."""
    miou_given_think: float | None
    """Over answers with a thought; None if there is none, or if an answer is no time span."""
    miou_given_skip: float | None
    parts: Mapping[str, Summary] = field(default_factory=dict)
    """`task=<name>` and `difficulty=<name>` -> that part of the questions, where there are several."""

    def means(self) -> dict[str, float | None]:
        """Collect name -> mean, without intervals; those of parts as `<metric>/<part>`."""
        out: dict[str, float | None] = {name: interval.mean for name, interval in self.metrics.items()}
        out |= {"miou_given_think": self.miou_given_think, "miou_given_skip": self.miou_given_skip}
        return out | {f"{m}/{part}": x.mean for part, summary in self.parts.items() for m, x in summary.metrics.items()}


def summarize(records: Sequence[Record], seed: int, *, parts: bool = True, only: Collection[str] | None = None) -> Summary:
    """Summarise every metric that applies with its interval, of all records and, unless told otherwise, of their parts. `seed` decides
    the resampling; `only` names the metrics that are wanted."""
    chosen = parts_of(records) if parts else {}
    return _summarize(records, seed, {part: _summarize(rows, seed, {}, only) for part, rows in chosen.items()}, only)


def _summarize(records: Sequence[Record], seed: int, parts: Mapping[str, Summary], only: Collection[str] | None) -> Summary:
    from vlmrl.metrics.intervals import mean_interval  # what only checks a recipe computes none

    answers = by_sample(records)
    metrics: dict[str, Interval] = {}
    for name, found in metric_values(answers, only).items():
        values, clusters = [value for value, _ in found.values()], [cluster for _, cluster in found.values()]
        # a generator per metric: adding a metric moves no other one's interval
        bounds = mean_interval(values, rng.generator(seed, "bootstrap", name), clusters, shares=name not in AVERAGES)
        metrics[name] = Interval.of(sum(values) / len(values), bounds)
    return Summary(
        n=len(answers),
        clusters=len({r.cluster for r in records}),
        metrics=metrics,
        miou_given_think=_miou(answers, lambda r: r.think.has),
        miou_given_skip=_miou(answers, lambda r: not r.think.has),
        parts=parts,
    )


def _miou(answers: Answers, wanted: Callable[[Record], bool]) -> float | None:
    """Mean temporal IoU of the wanted answers; None without any, or if an answer is no time span."""
    records = [r for rows in answers.values() for r in rows]
    found = [r.scores["tiou"] for r in records if wanted(r)] if all("tiou" in r.scores for r in records) else []
    return sum(found) / len(found) if found else None
