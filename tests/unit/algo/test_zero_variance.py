"""algo.filter.zero_variance."""

from __future__ import annotations

from tests.support.builders import inputs
from vlmrl.algo.filter.zero_variance import zero_variance

NAN = float("nan")


def test_zero_variance():
    rows = [(1.0, 5, True), (0.0, 2, True), (1.0, 5, True), (1.0, 2, True), (7.0, 3, True), (NAN, 4, False)]
    keep, reason = zero_variance(inputs(rows))
    assert keep.tolist() == [False, True, False, True, False, False]
    assert reason == "zero_variance"


def test_unjudged_rows_do_not_make_a_group_mixed():
    assert zero_variance(inputs([(1.0, 0, True), (NAN, 0, False), (1.0, 0, True)]))[0].tolist() == [False] * 3


def test_a_ground_truth_row_does_not_make_a_group_mixed():
    rows = [(0.0, 0, True), (0.0, 0, True), (1.0, 0, True)]
    assert zero_variance(inputs(rows, off_policy=[2]))[0].tolist() == [False] * 3
    assert zero_variance(inputs(rows))[0].tolist() == [True] * 3


def test_the_last_bit_is_no_difference():
    assert zero_variance(inputs([(0.1 + 0.2, 0, True), (0.3, 0, True)]))[0].tolist() == [False, False]
