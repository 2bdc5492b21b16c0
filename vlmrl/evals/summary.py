"""From records to numbers: means with their uncertainty, paired comparisons, and the best answer that looks at nothing.

Intervals are 95% percentile bootstrap intervals; questions about one video are resampled together. Numbers do not depend on the
order of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vlmrl import rng
from vlmrl.errors import VlmrlError
from vlmrl.evals.records import Record
from vlmrl.metrics import thought
from vlmrl.metrics.stats import bootstrap_interval, paired_bootstrap, paired_t

METRICS: dict[str, Callable[[Record], float]] = {
    "miou": lambda r: r.scores["tiou"],
    "r1@0.3": lambda r: float(r.scores["tiou"] >= 0.3),
    "r1@0.5": lambda r: float(r.scores["tiou"] >= 0.5),
    "r1@0.7": lambda r: float(r.scores["tiou"] >= 0.7),
    "parse_rate": lambda r: float(r.status == "ok"),
    "format_rate": lambda r: float(r.format_ok),
    "think_rate": lambda r: float(r.think.has),
    "tokens": lambda r: float(r.n_out),
    "truncation_rate": lambda r: float(r.finish == "length" or r.unclosed),
}
"""Name -> its value for one record. All are means over all records: what cannot be read counts 0."""

LABELS = {
    "miou": "mIoU",
    "r1@0.3": "R1@0.3",
    "r1@0.5": "R1@0.5",
    "r1@0.7": "R1@0.7",
    "parse_rate": "readable",
    "format_rate": "right form",
    "think_rate": "with thought",
    "tokens": "tokens",
    "truncation_rate": "cut off",
}

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
    clusters: int
    """Distinct videos."""
    metrics: Mapping[str, Interval]
    """By the names of `METRICS`; empty without records."""
    miou_given_think: float | None
    """Over answers with a thought; None if there is none."""
    miou_given_skip: float | None

    def means(self) -> dict[str, float | None]:
        """Name -> mean, without intervals."""
        out: dict[str, float | None] = {name: interval.mean for name, interval in self.metrics.items()}
        return out | {"miou_given_think": self.miou_given_think, "miou_given_skip": self.miou_given_skip}


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
    """Questions where b has the larger temporal IoU."""
    worse: int


def summarize(records: Sequence[Record], seed: int) -> Summary:
    """Every metric with its interval. `seed` decides the resampling."""
    ordered = sorted(records, key=lambda r: r.sample_id)
    clusters = [r.cluster for r in ordered]
    if not ordered:
        return Summary(n=0, clusters=0, metrics={}, miou_given_think=None, miou_given_skip=None)
    metrics: dict[str, Interval] = {}
    for name, of in METRICS.items():
        values = [of(r) for r in ordered]
        low, high = bootstrap_interval(values, rng.generator(seed, "bootstrap", name), clusters=clusters)
        metrics[name] = Interval(mean=sum(values) / len(values), low=low, high=high)
    thoughts = thought.summarize([thought.Thought(correct=r.scores["tiou"], thinks=r.think.has, tokens=r.n_out) for r in ordered])
    return Summary(
        n=len(ordered),
        clusters=len(set(clusters)),
        metrics=metrics,
        miou_given_think=thoughts.accuracy_given_think,
        miou_given_skip=thoughts.accuracy_given_skip,
    )


def compare(records_a: Sequence[Record], records_b: Sequence[Record], seed: int) -> Comparison:
    """Paired differences b - a, matched by sample id.

    Raises:
        Incomparable: other samples, another version of a sample (question, gold answer or pixels), or other generation settings.
    """
    pairs = _pairs(records_a, records_b)
    clusters = [a.cluster for a, _ in pairs]
    metrics: dict[str, Difference] = {}
    for name, of in METRICS.items():
        before, after = [of(a) for a, _ in pairs], [of(b) for _, b in pairs]
        low, high = paired_bootstrap(before, after, rng.generator(seed, "paired", name), clusters=clusters)
        test = paired_t(before, after)
        metrics[name] = Difference(mean=test.difference, low=low, high=high, t=test.t, p=test.p)
    gains = [b.scores["tiou"] - a.scores["tiou"] for a, b in pairs]
    return Comparison(n=len(pairs), metrics=metrics, better=sum(g > 0 for g in gains), worse=sum(g < 0 for g in gains))


def _pairs(records_a: Sequence[Record], records_b: Sequence[Record]) -> list[tuple[Record, Record]]:
    a, b = ({r.sample_id: r for r in records} for records in (records_a, records_b))
    for side, records in ((a, records_a), (b, records_b)):
        if len(side) < len(records):
            raise Incomparable(f"{len(records) - len(side)} samples occur more than once in the records of '{records[0].stage}'")
    if not a or not b:
        raise Incomparable("one of the two sets has no records; evaluate both on the same rows")
    alone = sorted(set(a) ^ set(b))
    if alone:
        raise Incomparable(f"{len(alone)} samples are in one set only, the first is '{alone[0]}'; evaluate both on the same rows")
    for name in sorted(a):
        if a[name].sample_hash != b[name].sample_hash:
            raise Incomparable(
                f"sample '{name}' differs between the sets (question, gold answer, video or pixel budget); evaluate both on the same rows"
            )
        if dict(a[name].settings) != dict(b[name].settings):
            raise Incomparable(
                f"sample '{name}' was generated for with {dict(a[name].settings)} and {dict(b[name].settings)}; use the same settings"
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
