"""From records to numbers: means with their uncertainty, paired comparisons, and the best answer that looks at nothing.

Intervals are 95% percentile bootstrap intervals; questions about one video are resampled together. Numbers do not depend on the
order of the records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vlmrl import rng
from vlmrl.errors import VlmrlError
from vlmrl.evals.score.grouped import GROUPED
from vlmrl.evals.score.measures import LABELS, METRICS, main_score, parts_of
from vlmrl.evals.score.records import Record
from vlmrl.metrics import thought
from vlmrl.metrics.stats import bootstrap_interval, paired_bootstrap, paired_t

__all__ = ["LABELS", "METRICS", "Comparison", "Difference", "Incomparable", "Interval", "Summary", "best_constant", "compare", "summarize"]

MAX_CANDIDATES = 128
"""Distinct starts (and ends) that `best_constant` tries."""

Span = tuple[float, float]


class Incomparable(VlmrlError):
    """Two sets of records are not answers to the same questions under the same settings."""

    exit_code = 65


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One model on one set of questions."""

    n: int
    """Questions; each may have several answers."""
    clusters: int
    """Distinct videos."""
    metrics: Mapping[str, Interval]
    """By the names of `METRICS` and `grouped.GROUPED`, those that apply to at least one record; empty without records."""
    miou_given_think: float | None
    """Over answers with a thought; None if there is none, or if an answer is no time span."""
    miou_given_skip: float | None
    parts: Mapping[str, Summary] = field(default_factory=dict)
    """`task=<name>` and `difficulty=<name>` -> that part of the questions, where there are several."""

    def means(self) -> dict[str, float | None]:
        """Name -> mean, without intervals; those of parts as `<metric>/<part>`."""
        out: dict[str, float | None] = {name: interval.mean for name, interval in self.metrics.items()}
        out |= {"miou_given_think": self.miou_given_think, "miou_given_skip": self.miou_given_skip}
        return out | {f"{m}/{part}": x.mean for part, summary in self.parts.items() for m, x in summary.metrics.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Mean of b - a over the same questions."""

    mean: float
    low: float
    high: float
    """95% paired percentile bootstrap, videos resampled whole."""
    t: float
    """Paired t statistic; infinite when every question differs by the same amount."""
    p: float
    """Two-sided, of the t test (which takes questions for independent)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two models on the same questions."""

    n: int
    metrics: Mapping[str, Difference]
    better: int
    """Questions where b has the larger main score (temporal IoU of a time span, see `measures.MAIN`)."""
    worse: int
    parts: Mapping[str, Comparison] = field(default_factory=dict)
    """As in `Summary`."""


def summarize(records: Sequence[Record], seed: int) -> Summary:
    """Every metric that applies with its interval, of all records and of their parts. `seed` decides the resampling."""
    return _summarize(records, seed, parts=True)


def _summarize(records: Sequence[Record], seed: int, *, parts: bool = False) -> Summary:
    ordered = sorted(records, key=lambda r: (r.sample_id, r.k))
    if not ordered:
        return Summary(n=0, clusters=0, metrics={}, miou_given_think=None, miou_given_skip=None)
    valued = {name: [(value, r.cluster) for r in ordered if (value := of(r)) is not None] for name, of in METRICS.items()}
    valued |= {name: of(ordered) for name, of in GROUPED.items()}
    metrics: dict[str, Interval] = {}
    for name, pairs in valued.items():
        if pairs:
            values = [value for value, _ in pairs]
            low, high = bootstrap_interval(values, rng.generator(seed, "bootstrap", name), clusters=[cluster for _, cluster in pairs])
            metrics[name] = Interval(mean=sum(values) / len(values), low=low, high=high)
    spans = all("tiou" in r.scores for r in ordered)
    thoughts = thought.summarize([thought.Thought(correct=main_score(r), thinks=r.think.has, tokens=r.n_out or 0) for r in ordered])
    return Summary(
        n=len({r.sample_id for r in ordered}),
        clusters=len({r.cluster for r in ordered}),
        metrics=metrics,
        miou_given_think=thoughts.accuracy_given_think if spans else None,
        miou_given_skip=thoughts.accuracy_given_skip if spans else None,
        parts={part: _summarize(rows, seed) for part, rows in parts_of(ordered).items()} if parts else {},
    )


def compare(records_a: Sequence[Record], records_b: Sequence[Record], seed: int) -> Comparison:
    """Paired differences b - a, matched by sample id and number of the answer.

    Raises:
        Incomparable: other samples, another version of a sample (question, gold answer or pixels), or other generation settings.
    """
    pairs = _pairs(records_a, records_b)
    after = {(b.sample_id, b.k): b for _, b in pairs}
    parts = {name: [(a, after[a.sample_id, a.k]) for a in part] for name, part in parts_of([a for a, _ in pairs]).items()}
    return dataclasses.replace(_compare(pairs, seed), parts={name: _compare(part, seed) for name, part in parts.items()})


def _compare(pairs: Sequence[tuple[Record, Record]], seed: int) -> Comparison:
    """A metric is compared over the questions to which it applies on both sides."""
    metrics: dict[str, Difference] = {}
    for name, of in METRICS.items():
        found = [(x, y, a.cluster) for a, b in pairs if (x := of(a)) is not None and (y := of(b)) is not None]
        if not found:
            continue
        before, after = [x for x, _, _ in found], [y for _, y, _ in found]
        low, high = paired_bootstrap(before, after, rng.generator(seed, "paired", name), clusters=[cluster for _, _, cluster in found])
        test = paired_t(before, after)
        metrics[name] = Difference(mean=test.difference, low=low, high=high, t=test.t, p=test.p)
    gains = [main_score(b) - main_score(a) for a, b in pairs]
    return Comparison(n=len(pairs), metrics=metrics, better=sum(g > 0 for g in gains), worse=sum(g < 0 for g in gains))


def _pairs(records_a: Sequence[Record], records_b: Sequence[Record]) -> list[tuple[Record, Record]]:
    a, b = ({(r.sample_id, r.k): r for r in records} for records in (records_a, records_b))
    for side, records in ((a, records_a), (b, records_b)):
        if len(side) < len(records):
            raise Incomparable(f"{len(records) - len(side)} samples occur more than once in the records of '{records[0].stage}'")
    if not a or not b:
        raise Incomparable("one of the two sets has no records; evaluate both on the same rows")
    alone = sorted(set(a) ^ set(b))
    if alone:
        raise Incomparable(f"{len(alone)} samples are in one set only, the first is '{alone[0][0]}'; evaluate both on the same rows")
    for name in sorted(a):
        if a[name].sample_hash != b[name].sample_hash:
            raise Incomparable(
                f"sample '{name[0]}' differs between the sets (question, gold answer, video or pixel budget); evaluate the same rows"
            )
        if dict(a[name].settings) != dict(b[name].settings):
            raise Incomparable(
                f"sample '{name[0]}' was generated for with {dict(a[name].settings)} and {dict(b[name].settings)}; use the same settings"
            )
    return [(a[name], b[name]) for name in sorted(a)]


def best_constant(golds: Sequence[Span]) -> tuple[Span, float]:
    """The span with the largest mean IoU when it is given as the answer to every question, and that mean: what a model reaches that
    looks at nothing.

    With the end fixed, each IoU is convex in the start between gold boundaries and falls after a gold start, so a best start is a
    gold start; likewise for ends. All pairs are tried; with more than `MAX_CANDIDATES` distinct starts or ends, only that many
    quantiles of them are, and the result is a lower bound.

    Raises:
        ValueError: no gold spans.
    """
    if not golds:
        raise ValueError("no gold spans")
    gold = np.asarray(golds, dtype=np.float64)
    starts, ends = _candidates(gold[:, 0]), _candidates(gold[:, 1])
    best: tuple[float, Span] = (-1.0, (0.0, 0.0))
    for start in starts:
        later = ends[ends >= start]
        if not len(later):
            continue
        overlap = np.minimum(later[:, None], gold[:, 1]) - np.maximum(start, gold[:, 0])
        hull = np.maximum(later[:, None], gold[:, 1]) - np.minimum(start, gold[:, 0])
        means = np.divide(overlap.clip(min=0), hull, out=np.zeros_like(hull), where=hull > 0).mean(axis=1)
        place = int(means.argmax())
        if means[place] > best[0]:
            best = float(means[place]), (float(start), float(later[place]))
    return best[1], best[0]


def _candidates(values: np.ndarray) -> np.ndarray:
    distinct = np.unique(values)
    if len(distinct) <= MAX_CANDIDATES:
        return distinct
    return np.unique(np.quantile(values, np.linspace(0, 1, MAX_CANDIDATES), method="nearest"))
