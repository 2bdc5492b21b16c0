"""Statistics of evaluation: the cluster bootstrap of a mean and its test, McNemar's test, pass@k and majority voting."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

RESAMPLES = 2000
_DRAWS = 4_000_000
"""Draws that are in memory at once."""
_ROUNDING = 1e-12
"""A mean or a sum below this share of the largest sum is zero: what is left of differences that cancel."""


def bootstrap_interval(
    values: Sequence[float], generator: np.random.Generator, *, clusters: Sequence[Hashable] | None = None, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Compute the 95% percentile bootstrap interval of the mean; with `clusters` (one name per value), whole clusters are drawn.

    Returns:
        (low, high).

    Raises:
        ValueError: no values, or not one cluster each.
    """
    means, _ = _resampled(values, generator, clusters, resamples)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def bootstrap_test(
    differences: Sequence[float], generator: np.random.Generator, *, clusters: Sequence[Hashable] | None = None, resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """Test a mean difference by the resamples of `bootstrap_interval`.

    p = 2 (1 + resamples on the other side of 0) / (1 + resamples), and never less than 2^(1 - m) for m clusters that differ: with few
    of them all resamples may lie on one side, and no test that only trusts the signs of m differences can say more.

    Returns:
        (low, high, p): the 95% interval of the mean difference, and the two-sided p value.

    Raises:
        ValueError: no differences, or not one cluster each.
    """
    means, sums = _resampled(differences, generator, clusters, resamples)
    low, high = np.quantile(means, [0.025, 0.975])
    nothing = _ROUNDING * np.abs(sums).max()
    # resamples at 0 count on both sides: they speak against a difference
    beyond = min(int((means <= nothing).sum()), int((means >= -nothing).sum()))
    # the p value of a sign test in which all m clusters agree
    floor = math.pow(2.0, 1 - int(np.count_nonzero(np.abs(sums) > nothing)))
    return float(low), float(high), min(1.0, max(2 * (1 + beyond) / (1 + resamples), floor))


def _resampled(
    values: Sequence[float], generator: np.random.Generator, clusters: Sequence[Hashable] | None, resamples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means of the resamples [resamples], and the sum of each cluster [clusters]."""
    if not len(values):
        raise ValueError("bootstrap: no values")
    names = list(range(len(values))) if clusters is None else list(clusters)
    index = {name: place for place, name in enumerate(dict.fromkeys(names))}
    # a resample draws clusters, so its mean is the sum of their sums over the sum of their sizes: large clusters weigh more
    sums, sizes = np.zeros(len(index)), np.zeros(len(index))
    for value, name in zip(values, names, strict=True):
        sums[index[name]] += value
        sizes[index[name]] += 1
    means = np.empty(resamples)
    step = max(1, _DRAWS // len(index))
    for start in range(0, resamples, step):
        # [resamples of this round, clusters], in rounds that bound memory
        drawn = generator.integers(0, len(index), size=(min(step, resamples - start), len(index)))
        means[start : start + len(drawn)] = sums[drawn].sum(1) / sizes[drawn].sum(1)
    return means, sums


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> float:
    """Compute the exact two-sided p value of McNemar's test.

    Returns:
        In (0, 1]; 1 where no question changed.
    """
    # only questions that changed count: under no difference each is a gain or a loss with chance 1/2
    gains = sum((not x) and y for x, y in zip(a, b, strict=True))
    losses = sum(x and (not y) for x, y in zip(a, b, strict=True))
    if gains + losses == 0:
        return 1.0
    from scipy.stats import binomtest  # heavy

    return float(binomtest(min(gains, losses), gains + losses, 0.5).pvalue)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Compute the chance that at least one of k answers drawn from n (of which `correct` are right) is right.

    Raises:
        ValueError: not 0 <= correct <= n, or not 1 <= k <= n.
    """
    _check_draw(n, correct, k)
    # 1 - C(n - c, k) / C(n, k), exact in integers; comb is 0 where fewer than k are wrong
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_all_k(n: int, correct: int, k: int) -> float:
    """Compute pass^k: chance that all of k answers drawn from n (of which `correct` are right) are right. Errors as `pass_at_k`."""
    _check_draw(n, correct, k)
    return math.comb(correct, k) / math.comb(n, k)


def majority(answers: Sequence[str | None]) -> str | None:
    """Find the most frequent answer (maj@k), the first of equals. None, an answer that could not be read, has no vote."""
    votes: dict[str, int] = {}
    for answer in answers:
        if answer is not None:
            votes[answer] = votes.get(answer, 0) + 1
    return max(votes, key=lambda answer: votes[answer]) if votes else None


def _check_draw(n: int, correct: int, k: int) -> None:
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"cannot draw k={k} of n={n} answers with {correct} correct; needs 0 <= correct <= n and 1 <= k <= n")
