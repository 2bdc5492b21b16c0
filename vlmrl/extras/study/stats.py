"""Statistics of a study, as pure functions: intervals of paired differences, tests against 0 and against delta, verdicts, power.

Every measure is one number per run; an effect is the difference of two arms with the same seed, and seeds are independent. Intervals are
Student's t over the seeds' differences, not bootstraps: with eight seeds a percentile bootstrap covers less than it says and BCa has eight
values to estimate its skew from, while each difference is a mean over hundreds of answers, so that it is near enough to a normal law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal

ALPHA = 0.05
HOLDS, NO_EFFECT, OPEN, NO_PREMISE = "holds", "no effect above delta", "cannot be told", "premise not met"
Verdict = Literal["holds", "no effect above delta", "cannot be told", "premise not met"]


@dataclass(frozen=True)
class Level:
    """What a verdict may be wrong by; smaller at each of several looks (`looks.levels`)."""

    interval: float = ALPHA
    """Two-sided, of the interval that lies above 0."""
    excluded: float = ALPHA
    """One-sided, of the test that excludes an effect of delta."""


ONCE = Level()


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Mean of independent values with its t interval, and the spread that tests go by."""

    mean: float
    low: float
    high: float
    sd: float
    """Sample deviation, at least the resolution of the measure; NaN for one value."""
    n: int
    alpha: float = ALPHA
    """1 minus the confidence of the interval; smaller at each of several looks."""

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.sd / math.sqrt(self.n)


def estimate(values: Sequence[float], resolution: float = 0.0, alpha: float = ALPHA) -> Estimate:
    """Compute mean and t interval of the values of independent seeds; an infinite interval for fewer than two.

    Args:
        resolution: what one held-out answer more or less changes in the measure. The deviation is taken to be at least so large: that all
            seeds agree to the last answer does not mean that nothing is left to know.
        alpha: 1 minus the confidence of the interval.

    Raises:
        ValueError: no values, or one that is not finite.
    """
    from scipy import stats

    if not values:
        raise ValueError("estimate: no values")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"estimate: values must be finite, got {list(values)}")
    mean, n = fmean(values), len(values)
    if n < 2:
        return Estimate(mean=mean, low=-math.inf, high=math.inf, sd=math.nan, n=n, alpha=alpha)
    sd = max(stdev(values), resolution)
    half = float(stats.t.ppf(1 - alpha / 2, n - 1)) * sd / math.sqrt(n)
    return Estimate(mean=mean, low=mean - half, high=mean + half, sd=sd, n=n, alpha=alpha)


def p_above(found: Estimate, bound: float) -> float:
    """Compute the one-sided p value of the t test of "the mean is at most `bound`" against "it is above"; 1 for one value."""
    from scipy import stats

    if found.n < 2:
        return 1.0
    if found.error == 0:
        return 0.0 if found.mean > bound else 1.0
    return float(stats.t.sf((found.mean - bound) / found.error, found.n - 1))


def p_below(found: Estimate, bound: float) -> float:
    """Compute the one-sided p value of the t test of "the mean is at least `bound`" against "it is below"; 1 for one value."""
    mirrored = Estimate(mean=-found.mean, low=-found.high, high=-found.low, sd=found.sd, n=found.n)
    return p_above(mirrored, -bound)


def tost(found: Estimate, delta: float) -> float:
    """Compute the p value of the two one-sided tests (TOST) that the mean lies within (-delta, delta): the larger of the two.

    Raises:
        ValueError: delta is not positive.
    """
    if delta <= 0:
        raise ValueError(f"tost: delta must be positive, got {delta}")
    return max(p_above(found, -delta), p_below(found, delta))


def decide(found: Estimate | None, delta: float, *, premise: bool, level: Level = ONCE) -> Verdict:
    """Decide by a comparison's primary measure.

    `no effect above delta` comes first: an effect that is surely smaller than delta is none that matters here, be it above 0 or not.

    Args:
        found: the effect in the direction that is asked for, with an interval of this level; None without numbers.
        premise: whether all premises are met.
    """
    if not premise:
        return NO_PREMISE
    if found is None:
        return OPEN
    if p_below(found, delta) < level.excluded:
        return NO_EFFECT
    return HOLDS if found.low > 0 else OPEN


def remark(found: Estimate, delta: float) -> str:
    """Say what more is known of an effect for which no effect above delta is told; empty where there is nothing."""
    if found.high < 0:
        return "the opposite: the whole interval is below 0"
    if found.low > 0:
        return "an effect, but a smaller one than delta"
    return "equivalent within delta (both one-sided tests)" if tost(found, delta) < ALPHA else ""


def upper_sd(sd: float, n: int, confidence: float = 0.8) -> float:
    """Compute the upper one-sided confidence limit of a deviation that was estimated from n values: what a number of seeds is planned with,
    since a deviation of few runs is too small as often as it is too large (R. Browne, Statistics in Medicine 14, 1995).

    Raises:
        ValueError: fewer than two values.
    """
    from scipy import stats

    if n < 2:
        raise ValueError(f"upper_sd: a deviation needs two values or more, got {n}")
    return sd * math.sqrt((n - 1) / float(stats.chi2.ppf(1 - confidence, n - 1)))


def area(points: Sequence[tuple[float, float]]) -> float:
    """Compute the mean height of the curve through (x, y), by the trapezoid rule: the area under it over its width.

    Raises:
        ValueError: fewer than two points, or x that do not rise.
    """
    if len(points) < 2 or any(b[0] <= a[0] for a, b in pairwise(points)):
        raise ValueError(f"area needs two points or more with rising x, got {list(points)}")
    total = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points))
    return total / (points[-1][0] - points[0][0])
