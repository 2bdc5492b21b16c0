"""Confidence intervals and tests of evaluation, all at 95%: of a mean, of a paired difference, and of methods over seeds.

| of | where | interval | test |
|---|---|---|---|
| a mean | 0 or 1, every question with a medium of its own | Wilson's | |
| | else, at least 10 clusters | BCa bootstrap over clusters | |
| a paired difference | 0 or 1 on both sides, every question with a medium of its own | Tango's | exact McNemar |
| | else, at least 10 clusters | BCa bootstrap over clusters | sign flips of whole clusters |
| methods | runs with equal seeds, base and data shared | Student's t of the seeds' differences | the same |
| | other runs | Welch's t | the same |

A cluster is a medium with the questions about it. With fewer than `FEWEST` clusters a bootstrap covers less than it says, and where nothing
varies it has no width: both have no interval, and `ConfidenceInterval.why` says so.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev, variance
from typing import Any, Literal

import numpy as np

ALPHA = 0.05
FEWEST = 10
"""Clusters below which no interval is made by resampling."""
RESAMPLES = 2000
LARGE = 2000
"""Clusters above which corrections of order 1/sqrt(clusters) are left out, because their cost grows with the square."""
FLAT = "all equal"
_DRAWS = 4_000_000
"""Draws that are in memory at once."""
_DIGITS = 12
"""A cluster's sum counts to so many digits of the largest one: what is left of differences that cancel is no difference."""

Test = Literal["McNemar", "permutation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfidenceInterval:
    """An interval, or why there is none."""

    low: float | None = None
    high: float | None = None
    method: str = ""
    """`Wilson`, `Tango`, `BCa`, `percentile`; empty without an interval."""
    why: str = ""
    """Why there is none: `all equal`, or `no interval: 4 clusters`."""


def few(clusters: int | None = None) -> str:
    """Say why so few clusters have no interval."""
    return f"no interval: {f'fewer than {FEWEST}' if clusters is None else clusters} cluster{'' if clusters == 1 else 's'}"


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Compute Wilson's score interval of a share (Wilson 1927, J. Am. Stat. Assoc. 22:209; recommended for small n and shares near 0 and 1
    by Brown, Cai and DasGupta 2001, Stat. Sci. 16:101).

    Returns:
        (low, high) in [0, 1].

    Raises:
        ValueError: not 0 <= successes <= trials, or no trials.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    # written out: the tables and lists of runs need it, and to import scipy.stats takes longer than all else that they do
    square = NormalDist().inv_cdf(1 - ALPHA / 2) ** 2
    share, size = successes / trials, trials + square
    center = (successes + square / 2) / size
    half = math.sqrt(square * (trials * share * (1 - share) + square / 4)) / size
    return (0.0 if successes == 0 else center - half), (1.0 if successes == trials else center + half)


def tango(gains: int, losses: int, pairs: int) -> tuple[float, float]:
    """Compute Tango's score interval of a difference of paired shares, (gains - losses) / pairs (Tango 1998, Stat. Med. 17:891).

    It has a width at the edges too: without a gain or a loss it is -+ z^2 / (n + z^2), the end of Wilson's interval of 0 of n.

    Returns:
        (low, high) in [-1, 1].

    Raises:
        ValueError: more changes than pairs, or no pairs.
    """
    if pairs < 1 or min(gains, losses) < 0 or gains + losses > pairs:
        raise ValueError(f"{gains} gains and {losses} losses of {pairs} pairs")
    return -_tango_above(losses, gains, pairs), _tango_above(gains, losses, pairs)


def _tango_above(gains: int, losses: int, n: int) -> float:
    from scipy.optimize import brentq  # heavy

    quantile, change = NormalDist().inv_cdf(1 - ALPHA / 2), (gains - losses) / n

    def score(delta: float) -> float:
        # the likeliest share of losses where the true difference is delta: the larger root of 2n q^2 + linear q - losses delta (1 - delta)
        linear = -gains - losses + (2 * n - gains + losses) * delta
        share = (math.sqrt(max(0.0, linear**2 + 8 * n * losses * delta * (1 - delta))) - linear) / (4 * n)
        return n * delta - (gains - losses) - quantile * math.sqrt(max(0.0, n * (2 * share + delta * (1 - delta))))

    # below the estimate the score is negative, at 1 it is not
    if gains == n:
        return 1.0
    root: Any = brentq(score, min(1.0, change + 1e-9), 1.0)
    return float(root)


def mean_interval(
    values: Sequence[float], generator: np.random.Generator, clusters: Sequence[Hashable] | None = None, *, shares: bool = True
) -> ConfidenceInterval:
    """Compute the interval of a mean.

    Args:
        values: one per question.
        generator: of the resampling.
        clusters: of each value; None where each is its own.
        shares: whether values that are all 0 or 1 say what is right; not where they are means themselves, of tasks or of categories.

    Raises:
        ValueError: no values, or not one cluster each.
    """
    sums, sizes = _clustered(values, clusters)
    shares = shares and set(values) <= {0.0, 1.0}
    if shares and len(sums) == len(values):
        return _bounds("Wilson", *wilson(int(sum(values)), len(values)))
    if shares and len(sums) >= FEWEST and len(set(values)) == 1:
        # all right or all wrong: the media are the trials, since a medium is all right less often than a question is right
        return _bounds("Wilson", *wilson(len(sums) if values[0] else 0, len(sums)))
    return _resampled(sums, sizes, generator)


def difference_interval(
    a: Sequence[float],
    b: Sequence[float],
    generator: np.random.Generator,
    clusters: Sequence[Hashable] | None = None,
    *,
    shares: bool = True,
) -> ConfidenceInterval:
    """Compute the interval of the mean of b - a, paired by question. Arguments and errors as `mean_interval`."""
    # of the differences, not of the two means: what makes a question hard for both sides cancels
    differences = [y - x for x, y in zip(a, b, strict=True)]
    sums, sizes = _clustered(differences, clusters)
    shares = shares and {*a, *b} <= {0.0, 1.0}
    if shares and len(sums) == len(differences):
        return _bounds("Tango", *tango(differences.count(1.0), differences.count(-1.0), len(differences)))
    if shares and len(sums) >= FEWEST and not any(differences):
        return _bounds("Tango", *tango(0, 0, len(sums)))  # the media are the trials, as above
    return _resampled(sums, sizes, generator)


def difference_test(
    a: Sequence[float],
    b: Sequence[float],
    generator: np.random.Generator,
    clusters: Sequence[Hashable] | None = None,
    *,
    shares: bool = True,
) -> tuple[float, Test]:
    """Test whether the mean of b - a is 0, two-sided.

    McNemar's test is exact, but takes questions to be independent. Elsewhere the differences of whole clusters have their signs flipped
    (Fisher's randomisation test): under no effect the two sides of a medium could be exchanged. All flips are tried where they are no more
    than the resamples, and m clusters that differ never give less than 2^(1 - m).

    Returns:
        (p, name of the test); p is 1 where nothing changed.
    """
    differences = [y - x for x, y in zip(a, b, strict=True)]
    sums, _ = _clustered(differences, clusters)
    if shares and {*a, *b} <= {0.0, 1.0} and len(sums) == len(differences):
        return mcnemar([x == 1 for x in a], [y == 1 for y in b]), "McNemar"
    return _sign_flips(sums, generator), "permutation"


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


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedEffect:
    """A difference between two methods and what is known of it from several runs of each."""

    difference: float
    error: float
    """Standard error over seeds."""
    freedom: float
    """Degrees of freedom of Student's t."""

    @property
    def quantile(self) -> float:
        """Half the width of the interval, in standard errors."""
        from scipy.special import stdtrit  # scipy.stats takes three times as long to import

        return float(stdtrit(self.freedom, 1 - ALPHA / 2))

    @property
    def p(self) -> float:
        """Two-sided p value; 1 where nothing varies, which proves nothing."""
        from scipy.special import stdtr

        return 2 * float(stdtr(self.freedom, -abs(self.difference) / self.error)) if self.error > 0 else 1.0

    def bounds(self, more: float | None = 0.0) -> ConfidenceInterval:
        """Make the interval over seeds, or with the variance `more` of another source of noise added to that over seeds.

        None in place of a variance says that it is not known: there is no interval.
        """
        if more is None or self.error == 0:
            return ConfidenceInterval(why=FLAT if more is not None else few())
        half = self.quantile * math.sqrt(self.error**2 + more)
        return _bounds("t", self.difference - half, self.difference + half)


def paired_seeds(a: Sequence[float], b: Sequence[float], resolution: float = 0.0) -> SeedEffect:
    """Estimate b - a from runs that share their seed, base and data pair by pair: the paired t of Student (1908, Biometrika 6:1).

    Seeds are few and each value is itself a mean over many questions, near enough to a normal law; a bootstrap of three values covers less
    than it says.

    Args:
        a, b: a mean per seed, at least two each, in the same order.
        resolution: what one answer more or less changes. The deviation over seeds is taken to be at least so large: that all seeds agree to
            the last answer does not mean that nothing is left to know.

    Raises:
        ValueError: fewer than two seeds, or not as many on both sides.
    """
    differences = [y - x for x, y in zip(a, b, strict=True)]
    if len(differences) < 2:
        raise ValueError(f"{len(differences)} seeds; a t interval needs two")
    n = len(differences)
    return SeedEffect(difference=fmean(differences), error=max(stdev(differences), resolution) / math.sqrt(n), freedom=n - 1)


def unpaired_seeds(a: Sequence[float], b: Sequence[float], resolution: float = 0.0) -> SeedEffect:
    """Estimate b - a from runs that share nothing, with spreads of their own: Welch's t (1947, Biometrika 34:28), with Satterthwaite's
    degrees of freedom. Arguments and errors as `paired_seeds`; the numbers of runs may differ.
    """
    if min(len(a), len(b)) < 2:
        raise ValueError(f"{len(a)} and {len(b)} runs; a t interval needs two of each side")
    parts = [max(variance(side), resolution**2) / len(side) for side in (a, b)]
    total, smallest = sum(parts), min(len(a), len(b)) - 1
    below = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True))
    return SeedEffect(difference=fmean(b) - fmean(a), error=math.sqrt(total), freedom=float(smallest) if below == 0 else total**2 / below)


def question_variance(differences: Sequence[float], clusters: Sequence[Hashable]) -> float | None:
    """Estimate the variance of the mean of the questions' differences, questions of a cluster together (Miller 2024, arXiv:2411.00640).

    Returns:
        None for fewer than `FEWEST` clusters.
    """
    sums, sizes = _clustered(differences, clusters)
    m, n = len(sums), len(differences)
    if m < FEWEST:
        return None
    return float(m / (m - 1) * ((sums - sizes * fmean(differences)) ** 2).sum() / n**2)


def _bounds(method: str, low: float, high: float) -> ConfidenceInterval:
    return ConfidenceInterval(low=low, high=high, method=method)


def _clustered(values: Sequence[float], clusters: Sequence[Hashable] | None) -> tuple[np.ndarray, np.ndarray]:
    """The sum and the number of values of each cluster [clusters]."""
    if not len(values):
        raise ValueError("no values")
    names = list(range(len(values))) if clusters is None else list(clusters)
    index = {name: place for place, name in enumerate(dict.fromkeys(names))}
    sums, sizes = np.zeros(len(index)), np.zeros(len(index))
    for value, name in zip(values, names, strict=True):
        sums[index[name]] += value
        sizes[index[name]] += 1
    largest = float(np.abs(sums).max())
    return (np.round(sums / largest, _DIGITS) * largest if largest else sums), sizes


def _resampled(sums: np.ndarray, sizes: np.ndarray, generator: np.random.Generator) -> ConfidenceInterval:
    """The BCa bootstrap (Efron 1987, J. Am. Stat. Assoc. 82:171) of sum / size over clusters drawn whole: large clusters weigh more.

    Above `LARGE` clusters the percentile bootstrap, which BCa's corrections no longer move: its jackknife grows with the square.
    """
    m = len(sums)
    if m < FEWEST:
        return ConfidenceInterval(why=few(m))
    if np.ptp(sums / sizes) <= 10.0**-_DIGITS * np.abs(sums).max():
        return ConfidenceInterval(why=FLAT)
    from scipy.stats import bootstrap  # heavy

    def ratio(total: np.ndarray, size: np.ndarray, axis: int = -1) -> np.ndarray:
        return total.sum(axis) / size.sum(axis)

    method: Literal["BCa", "percentile"] = "BCa" if m <= LARGE else "percentile"
    how: dict[str, Any] = {"paired": True, "vectorized": True, "n_resamples": RESAMPLES, "batch": max(1, _DRAWS // m)}
    found = bootstrap((sums, sizes), ratio, confidence_level=1 - ALPHA, method=method, rng=generator, **how).confidence_interval
    return _bounds(method, float(found.low), float(found.high))


def _sign_flips(sums: np.ndarray, generator: np.random.Generator) -> float:
    differing = sums[sums != 0]
    if len(differing) < 2:
        return 1.0
    from scipy.stats import norm, permutation_test  # heavy

    if len(differing) > LARGE:  # the sum of so many flipped terms is normal
        return 2 * float(norm.sf(abs(differing.sum()) / math.sqrt((differing**2).sum())))

    def gap(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        return x.sum(axis) - y.sum(axis)

    how: dict[str, Any] = {"vectorized": True, "n_resamples": RESAMPLES, "batch": max(1, _DRAWS // len(differing))}
    found = permutation_test((differing, np.zeros_like(differing)), gap, permutation_type="samples", rng=generator, **how)
    return min(1.0, float(found.pvalue))
