"""algo.advantage.dr_grpo against numbers computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.dr_grpo import dr_grpo

NAN = float("nan")


def one(values):
    return dr_grpo(inputs([(v, 0, v == v) for v in values])).tolist()


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ([1, NAN, 0, 0], [2 / 3, 0, -1 / 3, -1 / 3]),
        ([NAN, 4.0], [0, 0]),
        ([0.1] * 8, [0] * 8),
    ],
)
def test_dr_grpo(rewards, expected):
    assert one(rewards) == pytest.approx(expected)


def test_groups_of_different_size_do_not_see_each_other():
    rows = [(1.0, 0, True), (5.0, 7, True), (0.0, 0, True), (9.0, 7, True), (0.5, 0, True)]
    assert dr_grpo(inputs(rows)).tolist() == [0.5, -2.0, -0.5, 2.0, 0.0]


@given(values=st.lists(st.integers(-5, 5), min_size=2, max_size=8), scale=st.integers(1, 20))
def test_scales_with_the_reward_and_sums_to_zero(values, scale):
    assert one([v * scale for v in values]) == pytest.approx([a * scale for a in one(values)], abs=1e-9)
    assert sum(one(values)) == pytest.approx(0, abs=1e-9)
