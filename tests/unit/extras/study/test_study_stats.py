"""vlmrl.extras.study.stats.py against scipy, the noncentral t distribution, and numbers by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vlmrl.extras.study.looks import bounds, levels
from vlmrl.extras.study.power import power, power_of_looks, seeds_for
from vlmrl.extras.study.stats import (
    HOLDS,
    NO_EFFECT,
    NO_PREMISE,
    ONCE,
    OPEN,
    area,
    decide,
    estimate,
    p_above,
    p_below,
    remark,
    tost,
    upper_sd,
)
from vlmrl.extras.study.tables import span

VALUES = st.lists(st.floats(-1, 1).map(lambda v: round(v, 3)), min_size=2, max_size=12).filter(lambda values: len(set(values)) > 1)


def test_an_interval_by_hand() -> None:
    # 1, 2, 3: mean 2, error 1 / sqrt(3); t(0.975, 2) = 4.302653
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.sd, found.n) == (2, 1, 3)
    assert found.high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert 2 - found.low == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


@given(VALUES, st.floats(-0.5, 0.5))
def test_intervals_and_tests_are_those_of_scipy(values, bound) -> None:
    found = estimate(values)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-12)
    assert p_above(found, bound) == pytest.approx(stats.ttest_1samp(values, bound, alternative="greater").pvalue, abs=1e-12)
    assert p_below(found, bound) == pytest.approx(stats.ttest_1samp(values, bound, alternative="less").pvalue, abs=1e-12)


@given(VALUES, st.floats(0.01, 0.5))
def test_equivalence_is_an_interval_of_ninety_percent_within_delta(values, delta) -> None:
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.90)
    if min(abs(low + delta), abs(high - delta)) > 1e-9:
        assert (tost(estimate(values), delta) < 0.05) == (-delta < low and high < delta)


def test_agreement_of_all_seeds_leaves_the_resolution() -> None:
    assert estimate([0.5] * 4).low == 0.5
    found = estimate([0.5] * 4, resolution=0.1)
    # t(0.975, 3) = 3.182446
    assert (found.low, found.high) == pytest.approx((0.5 - 3.182446 * 0.05, 0.5 + 3.182446 * 0.05), rel=1e-6)
    assert estimate([0.0, 1.0], resolution=0.1).sd == estimate([0.0, 1.0]).sd


def test_the_interval_of_a_look_says_its_confidence() -> None:
    """One that is not the table's 95%."""
    assert "%" not in span(estimate([0.1, 0.2, 0.3]))
    assert span(estimate([0.1, 0.2, 0.3], alpha=0.0076)).endswith(" (99.24%)")


def test_one_seed_decides_nothing() -> None:
    found = estimate([0.9])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert p_above(found, 0.0) == p_below(found, 0.0) == tost(found, 0.1) == 1
    assert decide(found, 0.1, premise=True) == OPEN


@pytest.mark.parametrize("values", [[], [0.1, math.nan], [math.inf]])
def test_values_that_are_no_numbers_are_refused(values) -> None:
    with pytest.raises(ValueError, match="estimate"):
        estimate(values)


def test_a_delta_must_be_positive() -> None:
    with pytest.raises(ValueError, match="delta"):
        tost(estimate([0.0, 1.0]), 0.0)


@pytest.mark.parametrize(
    ("values", "delta", "verdict", "said"),
    [
        ([0.30, 0.32, 0.28, 0.31], 0.1, HOLDS, ""),
        ([0.09, 0.12, 0.08, 0.11], 0.1, HOLDS, ""),
        ([0.01, -0.01, 0.02, -0.02], 0.1, NO_EFFECT, "equivalent"),
        ([0.02, 0.03, 0.02, 0.03], 0.1, NO_EFFECT, "smaller one than delta"),
        ([-0.30, -0.32, -0.28, -0.31], 0.1, NO_EFFECT, "opposite"),
        ([-0.5, 0.2, -0.4, 0.1], 0.3, NO_EFFECT, ""),
        ([0.30, -0.20, 0.40, -0.10], 0.1, OPEN, ""),
        ([0.5, 0.0], 0.1, OPEN, ""),
    ],
)
def test_each_verdict_is_reached(values, delta, verdict, said) -> None:
    found = estimate(values)
    assert decide(found, delta, premise=True) == verdict
    assert decide(found, delta, premise=False) == NO_PREMISE
    if verdict == NO_EFFECT:
        assert (said in remark(found, delta)) if said else remark(found, delta) == ""


def test_without_numbers_nothing_can_be_told() -> None:
    assert decide(None, 0.1, premise=True) == OPEN
    assert decide(None, 0.1, premise=False) == NO_PREMISE


def test_planning_takes_the_upper_limit_of_a_deviation() -> None:
    # chi2(0.2, 4) = 1.648777
    assert upper_sd(0.1, 5) == pytest.approx(0.1 * math.sqrt(4 / 1.648777), rel=1e-5)
    assert upper_sd(0.1, 100) < upper_sd(0.1, 5)
    with pytest.raises(ValueError, match="two values"):
        upper_sd(0.1, 1)


@pytest.mark.parametrize(("effect", "sd", "n"), [(0.1, 0.1, 8), (0.05, 0.1, 12), (0.02, 0.01, 5)])
def test_power_is_that_of_the_noncentral_t(effect, sd, n) -> None:
    shift = effect / sd * math.sqrt(n)
    # with a delta near 0 what is not above 0 is excluded, and nothing is taken from `holds`
    found = power(effect, sd, n, delta=1e-9)
    assert found.holds == pytest.approx(stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, shift), abs=0.012)
    # an effect of 0 against delta is the mirror image of the effect delta against 0, at 5% on one side
    without = power(0.0, sd, n, delta=effect)
    assert without.no_effect == pytest.approx(stats.nct.sf(stats.t.ppf(0.95, n - 1), n - 1, shift), abs=0.012)
    assert without.holds <= 0.025 + 0.004
    assert power(effect, sd, n, delta=effect).no_effect == pytest.approx(0.05, abs=0.006)
    assert found.holds + found.no_effect + found.cannot_be_told == pytest.approx(1)


def test_power_needs_a_spread() -> None:
    with pytest.raises(ValueError, match="positive deviation"):
        power(0.1, 0.0, 8, 0.1)
    with pytest.raises(ValueError, match="two seeds"):
        power(0.1, 0.1, 1, 0.1)


def test_area_by_hand() -> None:
    assert area([(0, 0.0), (10, 1.0)]) == 0.5
    assert area([(0, 0.2), (10, 0.4), (30, 0.8)]) == pytest.approx((10 * 0.3 + 20 * 0.6) / 30)
    with pytest.raises(ValueError, match="two points"):
        area([(0, 1.0)])
    with pytest.raises(ValueError, match="rising"):
        area([(0, 1.0), (0, 2.0)])


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_an_area_lies_between_the_heights(heights) -> None:
    found = area([(10.0 * i, height) for i, height in enumerate(heights)])
    assert min(heights) - 1e-12 <= found <= max(heights) + 1e-12


@pytest.mark.parametrize(
    ("spending", "expected"),
    [
        ("obrien_fleming", [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
        ("pocock", [2.4380, 2.4268, 2.4101, 2.3966, 2.3859]),
    ],
)
def test_bounds_of_five_looks_are_those_of_the_tables(spending, expected) -> None:
    """Lan and DeMets' spending functions, five equal steps of information, 5% two-sided: the values that every program prints."""
    assert bounds([0.2, 0.4, 0.6, 0.8, 1.0], spending) == pytest.approx(expected, abs=3e-4)


def test_one_look_has_the_plain_level() -> None:
    assert bounds([1.0], "pocock") == pytest.approx([stats.norm.isf(0.025)])
    assert levels((7,), "obrien_fleming") == levels((7,), None) == [ONCE]


@pytest.mark.parametrize("spending", ["obrien_fleming", "pocock"])
def test_looks_together_err_as_seldom_as_one(spending) -> None:
    """Student's t at the levels of normal bounds is an approximation, a little too free for few seeds."""
    looks = (4, 7, 10)
    at = levels(looks, spending)
    without = power_of_looks(0.0, 1.0, looks, 1e-9, at, experiments=40_000)
    assert 0.022 < without.holds < 0.031
    assert 0.045 < power_of_looks(1.0, 1.0, looks, 1.0, at, experiments=40_000).no_effect < 0.058
    # five looks at the plain level would err far more often
    naive = power_of_looks(0.0, 1.0, looks, 1e-9, [ONCE] * 3, experiments=40_000)
    assert naive.holds > 0.04


def test_seeds_that_are_wanted() -> None:
    wanted = seeds_for(0.05, 0.05, 0.05)
    assert wanted is not None
    assert power(0.05, 0.05, wanted, 0.05).holds >= 0.8 > power(0.05, 0.05, wanted - 1, 0.05).holds
    # d = 1 at 2.5% one-sided: 10 of the noncentral t; 5% of the experiments are excluded, which takes some of them
    assert wanted == pytest.approx(10, abs=1)
    assert seeds_for(0.001, 1.0, 0.001) is None
