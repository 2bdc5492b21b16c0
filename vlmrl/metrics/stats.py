"""Uncertainty of evaluation numbers and comparison of two systems on the same questions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats


@dataclass(frozen=True, kw_only=True, slots=True)
class Paired:
    """Mean difference b - a over the same questions, its standard error, t test, and a 95% interval."""

    difference: float
    standard_error: float
    t: float
    p: float
    low: float
    high: float


def clt_error(values: Sequence[float]) -> float:
    """Standard error of the mean with divisor n - 1. Raises ValueError below two values, which have none."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        raise ValueError(f"a standard error needs at least 2 values, got {len(x)}")
    return float(x.std(ddof=1) / math.sqrt(len(x)))


def clustered_error(values: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Standard error of the mean when questions share a cluster (a video), with the small-sample factor g / (g - 1) of inspect-ai.

    Raises:
        ValueError: fewer than two clusters, which say nothing about the spread between clusters.
    """
    x = np.asarray(values, dtype=np.float64)
    sums: dict[Hashable, float] = {}
    for value, cluster in zip(x - x.mean(), clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + float(value)
    g = len(sums)
    if g < 2:
        raise ValueError(f"a clustered standard error needs at least 2 clusters, got {g}")
    return math.sqrt(g / (g - 1) * sum(s * s for s in sums.values())) / len(x)


def micro_mean(groups: Sequence[Sequence[float]]) -> float:
    """Mean over all values of all groups, so that a large group counts for more. Empty groups do not matter.

    Raises:
        ValueError: no values.
    """
    values = [value for group in groups for value in group]
    if not values:
        raise ValueError("micro_mean: no values")
    return sum(values) / len(values)


def macro_mean(groups: Sequence[Sequence[float]]) -> float:
    """Mean of the groups' means, so that every group (task, category) counts the same. Reports name which of the two means they give.

    Raises:
        ValueError: no groups, or an empty one, which has no mean.
    """
    if not groups or not all(groups):
        raise ValueError(f"macro_mean: {len(groups)} groups, {sum(not group for group in groups)} of them empty; leave out empty ones")
    return sum(sum(group) / len(group) for group in groups) / len(groups)


def wilson(successes: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion. Raises ValueError unless 0 <= successes <= n and n > 0."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"wilson: {successes} successes of {n}")
    z = float(scipy_stats.norm.ppf(0.5 + confidence / 2))
    p = successes / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return middle - half, middle + half


def bootstrap_interval(
    values: Sequence[float],
    rng: np.random.Generator,
    *,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean; with `clusters`, whole clusters are drawn."""
    x = np.asarray(values, dtype=np.float64)
    names = list(range(len(x))) if clusters is None else list(clusters)
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    sums, sizes = np.zeros(len(index)), np.zeros(len(index))
    for value, name in zip(x, names, strict=True):
        sums[index[name]] += value
        sizes[index[name]] += 1
    drawn = rng.integers(0, len(index), size=(resamples, len(index)))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(low), float(high)


def paired_t(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95) -> Paired:
    """Paired t test of mean(b) - mean(a). One pair has a difference and no evidence: error and interval are infinite, p is 1.

    Raises:
        ValueError: no pairs, or sides of different length.
    """
    d = np.asarray([y - x for x, y in zip(a, b, strict=True)], dtype=np.float64)
    if not len(d):
        raise ValueError("paired_t: no pairs")
    mean = float(d.mean())
    if len(d) == 1:
        return Paired(difference=mean, standard_error=math.inf, t=0.0, p=1.0, low=-math.inf, high=math.inf)
    error = clt_error(list(d))
    if error == 0:
        return Paired(difference=mean, standard_error=0.0, t=math.inf if mean else 0.0, p=0.0 if mean else 1.0, low=mean, high=mean)
    t = mean / error
    half = float(scipy_stats.t.ppf(0.5 + confidence / 2, len(d) - 1)) * error
    p = 2 * float(scipy_stats.t.sf(abs(t), len(d) - 1))
    return Paired(difference=mean, standard_error=error, t=t, p=p, low=mean - half, high=mean + half)


def paired_bootstrap(
    a: Sequence[float],
    b: Sequence[float],
    rng: np.random.Generator,
    *,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap interval of mean(b - a), questions (or clusters) resampled together."""
    d = [y - x for x, y in zip(a, b, strict=True)]
    return bootstrap_interval(d, rng, clusters=clusters, resamples=resamples, confidence=confidence)


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> float:
    """Exact two-sided p value of McNemar's test."""
    gains = sum((not x) and y for x, y in zip(a, b, strict=True))
    losses = sum(x and (not y) for x, y in zip(a, b, strict=True))
    if gains + losses == 0:
        return 1.0
    return float(scipy_stats.binomtest(min(gains, losses), gains + losses, 0.5).pvalue)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that at least one of k answers drawn from n (of which `correct` are right) is right.

    Raises:
        ValueError: not 0 <= correct <= n, or not 1 <= k <= n.
    """
    _check_draw(n, correct, k)
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_all_k(n: int, correct: int, k: int) -> float:
    """pass^k: chance that all of k answers drawn from n (of which `correct` are right) are right. Errors as `pass_at_k`."""
    _check_draw(n, correct, k)
    return math.comb(correct, k) / math.comb(n, k)


def majority(answers: Sequence[str | None]) -> str | None:
    """The most frequent answer (maj@k), the first of equals. None, an answer that could not be read, has no vote."""
    votes: dict[str, int] = {}
    for answer in answers:
        if answer is not None:
            votes[answer] = votes.get(answer, 0) + 1
    return max(votes, key=lambda answer: votes[answer]) if votes else None


def _check_draw(n: int, correct: int, k: int) -> None:
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"cannot draw k={k} of n={n} answers with {correct} correct; needs 0 <= correct <= n and 1 <= k <= n")
