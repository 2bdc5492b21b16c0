"""metrics.intervals against scipy, published formulas and independent computations, at the edges above all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize_scalar

from vlmrl.metrics import intervals as iv

Z2 = stats.norm.ppf(0.975) ** 2
A, B = [1, 1, 0, 1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 1, 1, 1, 1, 0]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


@pytest.mark.parametrize(("successes", "trials", "low", "high"), [(0, 12, 0.0, 0.2425), (252, 252, 0.98499, 1.0), (12, 12, 0.7575, 1.0)])
def test_a_share_has_a_width_at_the_edges(successes: int, trials: int, low: float, high: float) -> None:
    assert iv.wilson(successes, trials) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    found = iv.mean_interval([1.0] * successes + [0.0] * (trials - successes), generator())
    assert (found.low, found.high, found.method, found.why) == (*iv.wilson(successes, trials), "Wilson", "")


def test_shares_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="0 successes of 0 trials"):
        iv.wilson(0, 0)
    with pytest.raises(ValueError, match="0 losses of 0 pairs"):
        iv.tango(0, 0, 0)
    with pytest.raises(ValueError, match="no values"):
        iv.mean_interval([], generator())


def constrained(gains: int, losses: int, n: int, delta: float) -> float:
    """Score statistic of the hypothesis that the difference is `delta`, its nuisance share by a search in place of the formula."""
    low, high = max(0.0, -delta), (1 - delta) / 2

    def surprise(q: float) -> float:
        parts = ((gains, q + delta), (losses, q), (n - gains - losses, 1 - delta - 2 * q))
        return -sum(count * math.log(max(share, 1e-300)) for count, share in parts if count)

    q = minimize_scalar(surprise, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    return (gains - losses - n * delta) ** 2 / (n * (2 * q + delta - delta**2))


@pytest.mark.parametrize(("gains", "losses", "n"), [(1, 7, 21), (10, 0, 100), (3, 2, 5), (60, 30, 100), (1, 0, 44), (9, 0, 9)])
def test_tango_is_where_the_score_test_is_just_significant(gains: int, losses: int, n: int) -> None:
    low, high = iv.tango(gains, losses, n)
    assert low <= (gains - losses) / n <= high
    for end in (low, high):
        if abs(end) < 1:
            assert constrained(gains, losses, n, end) == pytest.approx(Z2, rel=2e-3)


def test_no_discordant_pair_leaves_something_to_know() -> None:
    low, high = iv.tango(0, 0, 100)
    assert (low, high) == (pytest.approx(-Z2 / (100 + Z2)), pytest.approx(Z2 / (100 + Z2)))
    found = iv.difference_interval([1.0] * 100, [1.0] * 100, generator())
    assert (found.low, found.high, found.method) == (low, high, "Tango")
    assert iv.difference_test([1.0] * 100, [1.0] * 100, generator()) == (1.0, "McNemar")


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 30))
def test_tango_turns_with_the_sides_and_has_a_width(gains: int, losses: int, more: int) -> None:
    low, high = iv.tango(gains, losses, gains + losses + more)
    assert iv.tango(losses, gains, gains + losses + more) == (pytest.approx(-high), pytest.approx(-low))
    assert -1 <= low < (gains - losses) / (gains + losses + more) < high <= 1 or gains == losses
    assert low < high


def test_bca_is_scipys_where_questions_are_alone_and_nearly_theirs_of_students_for_normal_values() -> None:
    values = np.random.default_rng(1).normal(0.25, 1, 80)
    found = iv.mean_interval(values.tolist(), generator())
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20000, rng=generator(7)).confidence_interval
    student = stats.ttest_1samp(values, 0).confidence_interval()
    assert (found.low, found.high) == (pytest.approx(theirs.low, abs=0.03), pytest.approx(theirs.high, abs=0.03))
    assert (found.low, found.high) == (pytest.approx(student.low, abs=0.03), pytest.approx(student.high, abs=0.03))
    assert found.method == "BCa"


def test_bca_leans_to_the_long_tail_where_percentiles_do_not() -> None:
    values = np.random.default_rng(3).exponential(1, 60)
    found = iv.mean_interval(values.tolist(), generator())
    plain = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=2000, rng=generator()).confidence_interval
    assert found.low is not None
    assert found.high is not None
    assert found.high > plain.high
    assert found.low > plain.low


def test_clusters_are_drawn_whole() -> None:
    """Twenty media that agree within themselves are twenty values, however many questions are asked about each."""
    of = np.random.default_rng(2).uniform(0, 1, 20)
    values, names = np.repeat(of, 5).tolist(), np.repeat(np.arange(20), 5).tolist()
    single = iv.mean_interval(of.tolist(), generator())
    alone = iv.mean_interval(values, generator())
    assert alone.high is not None
    assert alone.low is not None
    clustered = iv.mean_interval(values, generator(), names)
    assert (clustered.low, clustered.high) == (pytest.approx(single.low), pytest.approx(single.high))
    assert clustered.high is not None
    assert clustered.low is not None
    assert clustered.high - clustered.low > 1.8 * (alone.high - alone.low)


def test_large_numbers_of_clusters_take_percentiles() -> None:
    values = np.random.default_rng(4).uniform(0, 1, iv.LARGE + 1)
    found, student = iv.mean_interval(values.tolist(), generator()), stats.ttest_1samp(values, 0).confidence_interval()
    assert found.method == "percentile"
    assert (found.low, found.high) == (pytest.approx(student.low, abs=2e-3), pytest.approx(student.high, abs=2e-3))
    p, _ = iv.difference_test([0.0] * len(values), (values - 0.487).tolist(), generator())
    assert p == pytest.approx(stats.ttest_1samp(values - 0.487, 0).pvalue, abs=2e-3)


@pytest.mark.parametrize("clusters", [1, 2, 9])
def test_few_clusters_have_no_interval_and_say_so(clusters: int) -> None:
    values = [n / 40 for n in range(40)]
    for found in (
        iv.mean_interval(values, generator(), [n % clusters for n in range(40)]),
        iv.difference_interval([0.0] * 40, values, generator(), [n % clusters for n in range(40)]),
    ):
        assert (found.low, found.high, found.method) == (None, None, "")
        assert found.why == f"no interval: {clusters} cluster{'' if clusters == 1 else 's'}"
    assert iv.mean_interval(values, generator(), [n % 10 for n in range(40)]).low is not None


def test_what_does_not_vary_has_no_interval() -> None:
    assert iv.mean_interval([0.5] * 20, generator()) == iv.Bounds(why="all equal")
    assert iv.mean_interval([0.1 + 0.2, 0.3] * 20, generator()).why == "all equal"
    # of media that are all right the media are the trials
    assert iv.mean_interval([1.0] * 40, generator(), [n % 20 for n in range(40)]).low == iv.wilson(20, 20)[0]
    assert iv.difference_interval([1.0] * 40, [1.0] * 40, generator(), [n % 20 for n in range(40)]).high == iv.tango(0, 0, 20)[1]
    assert iv.difference_interval([0.3] * 40, [0.3] * 40, generator()).why == "all equal"


def test_means_of_categories_are_no_shares() -> None:
    assert iv.mean_interval([1.0] * 3, generator()).method == "Wilson"
    assert iv.mean_interval([1.0] * 3, generator(), shares=False).why == "no interval: 3 clusters"
    assert iv.difference_interval([1.0] * 3, [0.0] * 3, generator(), shares=False).low is None
    assert iv.difference_test([1.0] * 3, [0.0] * 3, generator(), shares=False) == (0.25, "permutation")


@pytest.mark.parametrize(("m", "floor"), [(1, 1.0), (2, 0.5), (3, 0.25), (5, 1 / 16), (8, 1 / 128)])
def test_few_clusters_cannot_prove_much(m: int, floor: float) -> None:
    b = [-0.9] * m + [0.0] * 4
    assert iv.difference_test([0.0] * (m + 4), b, generator()) == (floor, "permutation")


def test_sign_flips_agree_with_the_t_test_and_with_hand_counts() -> None:
    d = np.random.default_rng(1).normal(0.25, 1, 80)
    p, _ = iv.difference_test([0.0] * 80, d.tolist(), generator())
    assert p == pytest.approx(stats.ttest_1samp(d, 0).pvalue, abs=0.02)
    # two media, +20 and -15: of the four flips two are at least as far from 0 on each side
    values = [1.0] * 20 + [-0.75] * 20
    assert iv.difference_test([0.0] * 40, values, generator(), ["x"] * 20 + ["y"] * 20)[0] == 1.0


def test_mcnemar_by_hand() -> None:
    assert iv.mcnemar([bool(a) for a in A], [bool(b) for b in B]) == 1.0
    assert iv.mcnemar([False] * 6, [True] * 6) == pytest.approx(2 / 64)


def test_student_over_seeds_by_hand() -> None:
    # mean -0.218, sd 0.2876, t(2) 4.3027: half 0.7142; t = -1.313, p = 0.320
    found = iv.paired_seeds([0.0, 0.0, 0.0], [-0.54, 0.013, -0.127])
    bounds = found.bounds()
    assert (found.difference, found.p) == (pytest.approx(-0.218), pytest.approx(0.3197, abs=1e-3))
    assert (bounds.low, bounds.high) == (pytest.approx(-0.9322, abs=1e-4), pytest.approx(0.4962, abs=1e-4))


@pytest.mark.parametrize("second", [[0.2, 0.3, 0.5], [0.2, 0.3, 0.5, 0.45]])
def test_welch_is_scipys(second: list[float]) -> None:
    found, first = iv.unpaired_seeds([0.8, 0.9, 0.7], second), [0.8, 0.9, 0.7]
    theirs = stats.ttest_ind(second, first, equal_var=False)
    bounds = found.bounds()
    assert found.p == pytest.approx(theirs.pvalue)
    assert (bounds.low, bounds.high) == (pytest.approx(theirs.confidence_interval().low), pytest.approx(theirs.confidence_interval().high))


@pytest.mark.parametrize("estimate", [iv.paired_seeds, iv.unpaired_seeds])
def test_seeds_that_agree_to_the_last_answer_leave_something_to_know(estimate) -> None:
    bounds = estimate([1.0] * 3, [1.0] * 3, 0.05).bounds()
    assert bounds.low is not None
    assert bounds.low < 0 < bounds.high
    nothing = estimate([0.0] * 3, [0.1] * 3)
    assert (nothing.p, nothing.bounds()) == (1.0, iv.Bounds(why="all equal"))
    with pytest.raises(ValueError, match="needs two"):
        estimate([0.1], [0.2])


def test_questions_widen_the_interval_and_those_of_one_medium_count_once() -> None:
    values = [float(n % 2) for n in range(24)]
    alone = iv.question_variance(values, list(range(24)))
    assert alone == pytest.approx(24 / 23 * 0.25 / 24)  # the variance of the mean of 24 values
    shared = iv.question_variance(values, [n % 12 for n in range(24)])  # two alike about each
    assert alone is not None
    assert shared == pytest.approx(12 / 11 * 0.25 / 12)
    assert iv.question_variance(values, [n % 9 for n in range(24)]) is None
    found = iv.paired_seeds([0.0, 0.0], [0.4, 0.6])
    wide, narrow = found.bounds(alone), found.bounds()
    assert wide.high is not None
    assert narrow.high is not None
    assert wide.high - 0.5 == pytest.approx(math.hypot(narrow.high - 0.5, 12.7062 * math.sqrt(alone)), rel=1e-4)
    assert found.bounds(None).why == "no interval: fewer than 10 clusters"
