"""benchmarks.parts.intervals: few false alarms over seeds, many over the questions of single runs, and coverage at the edges."""

from __future__ import annotations

import pytest

from benchmarks.parts import intervals as bench
from vlmrl.metrics.intervals import tango, wilson


@pytest.fixture(scope="module")
def alarms() -> dict[str, bench.Found]:
    return {x.name: x for x in bench.false_alarms(200, (3,), bench.SPREAD, seed=1)}


def test_a_method_against_itself_differs_over_seeds_as_often_as_a_test_at_five_percent_may(alarms: dict[str, bench.Found]) -> None:
    low, high = bench.expected(200)
    assert (low, high) == (4, 16)
    assert low <= alarms["3 runs each, paired t"].alarms <= high
    assert alarms["3 runs each, Welch"].alarms <= high


def test_questions_of_single_runs_take_seed_noise_for_an_effect(alarms: dict[str, bench.Found]) -> None:
    former, now, *_ = alarms.values()
    assert former.alarms > 0.4 * former.of
    assert now.alarms > 0.4 * now.of, "no interval over questions mends it"


@pytest.mark.parametrize("share", [0.9, 0.98, 0.995])
def test_shares_near_one_are_covered_where_percentiles_are_not(share: float) -> None:
    assert bench.coverage(wilson, 150, share) > 0.92
    assert bench.coverage(bench.clopper_pearson, 150, share) >= 0.95
    assert bench.coverage(bench.percentiles, 150, share) < bench.coverage(wilson, 150, share)
    assert bench.coverage(bench.percentiles, 150, 0.995) < 0.6


def test_paired_differences_with_few_changes_are_covered() -> None:
    assert bench.coverage_of_change(tango, 50, 0.005, 0.005) > 0.95
    assert bench.coverage_of_change(bench.resampled_change, 50, 0.05, 0.0) < 0.95 < bench.coverage_of_change(tango, 50, 0.05, 0.0) + 0.02


def test_skewed_overlaps_of_few_media_are_covered_better_than_by_percentiles() -> None:
    bca, percentile = bench.coverage_of_overlaps(20, 300)
    assert bca > percentile
