"""Two systems on the same questions: every metric side by side, with a test that respects the pairing, and the questions that changed.

Of several answers to a question a metric takes the mean; questions about one video are resampled together.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vlmrl import rng
from vlmrl.evals.score.grouped import GROUPED
from vlmrl.evals.score.measures import MAIN, METRICS
from vlmrl.evals.score.records import Record
from vlmrl.metrics.stats import mcnemar, paired_t

Test = Literal["McNemar", "bootstrap"]
Answers = Mapping[str, Sequence[Record]]
"""Sample id -> its answers."""
Of = Callable[[Record], float | None]

UNKNOWN = "unknown"
"""What imported results do not say; a value may start so and go on with a hash of the part that is known. Equal to nothing."""
UPSTREAM = "upstream/"
"""Scores of another harness start so."""
RESAMPLES = 2000
RIGHT = 0.5
"""From here on a sample counts as right in the list of flips; for scores of 0 and 1 it makes no difference."""
LOWER_IS_BETTER = frozenset({"tokens", "truncation_rate"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """One metric on both sides."""

    n: int
    """Pairs: samples to which the metric applies on both sides, or groups of samples for a metric of groups."""
    clusters: int
    a: float
    """Mean of the first system."""
    b: float
    difference: float
    """b - a."""
    low: float
    high: float
    """95% paired percentile bootstrap of the difference, clusters (videos) resampled whole."""
    t: float
    """Paired t statistic, which takes samples for independent; infinite when every sample differs by the same amount."""
    p: float
    """Two-sided, of `test`."""
    test: Test
    """`McNemar`: exact, where both sides gave one answer per sample, each 0 or 1. `bootstrap`: of the interval's own resamples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """A sample that one side has right and the other wrong."""

    sample_id: str
    a: float
    """Mean over its answers."""
    b: float
    texts_a: tuple[str, ...]
    """As generated, one per answer."""
    texts_b: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """Something that has to be equal for a comparison to mean anything, and is not (or is not known)."""

    task: str
    what: str
    samples: int
    """Samples concerned."""
    detail: str
    """The first of them, or both values."""

    def text(self) -> str:
        return f"task '{self.task}': {self.what} on {self.samples} samples ({self.detail})"


def by_sample(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Sample id -> answers, ordered by id and number of the answer."""
    out: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r.sample_id, r.k)):
        out.setdefault(record.sample_id, []).append(record)
    return out


_SAME: tuple[tuple[str, Callable[[Record], str]], ...] = (
    ("the prompt", lambda r: r.prompt_ids_hash),
    ("question, gold answer, media or pixel budget", lambda r: r.sample_hash),
    ("the answer format", lambda r: r.answer_format),
    ("generation settings", lambda r: json.dumps(dict(r.settings), sort_keys=True) if r.settings else UNKNOWN),
    ("the task version", lambda r: str(r.task_version) if r.task_version > 0 else UNKNOWN),
    ("the harness", lambda r: r.harness),
)


def mismatches(task: str, a: Answers, b: Answers) -> list[Mismatch]:
    """What differs or is unknown between the two sides of a task, each kind once, with the number of samples."""
    out: list[Mismatch] = []
    for side, mine, other in (("first", a, b), ("second", b, a)):
        alone = sorted(set(mine) - set(other))
        if alone:
            out.append(Mismatch(task=task, what=f"only the {side} has answers", samples=len(alone), detail=f"first: '{alone[0]}'"))
    common = [name for name in a if name in b]
    uneven = [name for name in common if len(a[name]) != len(b[name])]
    if uneven:
        detail = f"first: '{uneven[0]}' has {len(a[uneven[0]])} and {len(b[uneven[0]])}"
        out.append(Mismatch(task=task, what="the number of answers differs", samples=len(uneven), detail=detail))
    for what, of in _SAME:
        values = {name: ({of(r) for r in a[name]}, {of(r) for r in b[name]}) for name in common}
        different = [name for name, (x, y) in values.items() if x != y]
        unknown = [name for name, (x, y) in values.items() if x == y and any(value.startswith(UNKNOWN) for value in x)]
        for kind, names in (("differs", different), ("is unknown", unknown)):
            if names:
                x, y = values[names[0]]
                detail = f"first: '{names[0]}', {_shown(x)} and {_shown(y)}"
                out.append(Mismatch(task=task, what=f"{what} {kind}", samples=len(names), detail=detail))
    return out


def _shown(values: set[str]) -> str:
    return ", ".join(sorted(values))[:120]


def gaps(a: Answers, b: Answers, seed: int) -> dict[str, Gap]:
    """Every metric that applies on both sides, by name: those of samples, those of groups, then those of another harness.

    Args:
        a, b: the same samples.
    """
    names = list(a)
    upstream = sorted({key for rows in (*a.values(), *b.values()) for r in rows for key in r.scores if key.startswith(UPSTREAM)})
    functions: dict[str, Of] = {**{key: _known(key, of) for key, of in METRICS.items()}, **{key: _score(key) for key in upstream}}
    out: dict[str, Gap] = {}
    for name, of in functions.items():
        pairs = [(x, y, a[s][0].cluster) for s in names if (x := value_of(of, a[s])) is not None and (y := value_of(of, b[s])) is not None]
        if pairs:
            single = all(len(a[s]) == 1 and len(b[s]) == 1 for s in names)
            out[name] = gap(*map(list, zip(*pairs, strict=True)), generator=rng.generator(seed, "paired", name), single=single)
    flat_a, flat_b = ([r for s in names for r in side[s]] for side in (a, b))
    for name, grouped in GROUPED.items() if all(map(is_scored, (*flat_a, *flat_b))) else ():
        values_a, values_b = grouped(flat_a), grouped(flat_b)
        if values_a and [cluster for _, cluster in values_a] == [cluster for _, cluster in values_b]:  # else they are no pairs
            x, clusters = map(list, zip(*values_a, strict=True))
            y = [value for value, _ in values_b]
            out[name] = gap(x, y, clusters, generator=rng.generator(seed, "paired", name), single=True)
    return out


def _score(name: str) -> Of:
    return lambda r: r.scores.get(name)


def is_scored(record: Record) -> bool:
    """Whether our own scorers have seen it. They have not where results were imported without the rows."""
    return MAIN.get(record.answer_type) in record.scores


def _known(name: str, of: Of) -> Of:
    """The metric, where the record has what it is made of: imported results may lack it."""
    needs: dict[str, Callable[[Record], object]] = {
        "score": lambda r: is_scored(r) or None,
        "format_rate": lambda r: r.format_ok,
        "tokens": lambda r: r.n_out,
        "truncation_rate": lambda r: r.finish,
    }
    need = needs.get(name)
    return of if need is None else lambda r: None if need(r) is None else of(r)


def value_of(of: Of, answers: Sequence[Record]) -> float | None:
    """Mean of a metric over the answers to which it applies; None if it applies to none."""
    found = [value for r in answers if (value := of(r)) is not None]
    return sum(found) / len(found) if found else None


def gap(a: Sequence[float], b: Sequence[float], clusters: Sequence[str], *, generator: np.random.Generator, single: bool) -> Gap:
    """Compare paired values, at least one.

    Args:
        single: one answer per sample, so that values of 0 and 1 are single trials and McNemar's test applies.
    """
    low, high, p = bootstrap_test([y - x for x, y in zip(a, b, strict=True)], clusters, generator)
    test: Test = "bootstrap"
    if single and {*a, *b} <= {0.0, 1.0}:
        test, p = "McNemar", mcnemar([x == 1 for x in a], [y == 1 for y in b])
    t = paired_t(a, b)
    return Gap(
        **{"n": len(a), "clusters": len(set(clusters)), "a": sum(a) / len(a), "b": sum(b) / len(b)},
        **{"difference": t.difference, "low": low, "high": high, "t": t.t, "p": p, "test": test},
    )


def bootstrap_test(
    differences: Sequence[float], clusters: Sequence[str], generator: np.random.Generator, *, resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """95% percentile interval of the mean difference and the two-sided p value of the same resamples, clusters drawn whole.

    p = 2 (1 + resamples on the other side of 0) / (1 + resamples), and never less than 2^(1 - m) for m clusters that differ: with few
    of them all resamples may lie on one side, and no test that only trusts the signs of m differences can say more.

    Raises:
        ValueError: no differences, or not one cluster each.
    """
    if not differences:
        raise ValueError("bootstrap_test: no differences")
    index = {name: place for place, name in enumerate(dict.fromkeys(clusters))}
    sums, sizes = np.zeros(len(index)), np.zeros(len(index))
    for value, name in zip(differences, clusters, strict=True):
        sums[index[name]] += value
        sizes[index[name]] += 1
    means = np.empty(resamples)
    step = max(1, 4_000_000 // len(index))  # bounds the memory of the draws
    for start in range(0, resamples, step):
        drawn = generator.integers(0, len(index), size=(min(step, resamples - start), len(index)))
        means[start : start + len(drawn)] = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    beyond = min(int((means <= 0).sum()), int((means >= 0).sum()))
    floor = math.pow(2.0, 1 - int(np.count_nonzero(sums)))
    return float(low), float(high), min(1.0, max(2 * (1 + beyond) / (1 + resamples), floor))


def flips(a: Answers, b: Answers, of: Of) -> list[Flip]:
    """Samples with a value of at least `RIGHT` on one side only, largest change first, then by id."""
    out: list[Flip] = []
    for name, answers in a.items():
        x, y = value_of(of, answers), value_of(of, b[name])
        if x is not None and y is not None and (x >= RIGHT) != (y >= RIGHT):
            out.append(Flip(sample_id=name, a=x, b=y, texts_a=tuple(r.text for r in answers), texts_b=tuple(r.text for r in b[name])))
    return sorted(out, key=lambda flip: (-abs(flip.b - flip.a), flip.sample_id))


def plain(value: object) -> object:
    """Data classes as JSON values; what is not finite as None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
