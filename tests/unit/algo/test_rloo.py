"""algo.advantage.rloo against numbers computed by hand and the leave-one-out mean."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.dr_grpo import dr_grpo
from vlmrl.algo.advantage.rloo import rloo

NAN = float("nan")
VALUES = st.lists(st.integers(-5, 5), min_size=2, max_size=8)


def one(values, method=rloo):
    return method(inputs([(v, 0, v == v) for v in values])).tolist()


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]), ([1, NAN, 0], [1, 0, -1]), ([2.0], [0]), ([3.0, NAN], [0, 0]), ([0.1] * 8, [0] * 8)],
)
def test_rloo(rewards, expected):
    assert one(rewards) == pytest.approx(expected)


@given(values=VALUES)
def test_the_baseline_is_the_mean_of_the_others(values):
    expected = [v - statistics.fmean(values[:i] + values[i + 1 :]) for i, v in enumerate(values)]
    assert one(values) == pytest.approx(expected, abs=1e-9)
    assert one(values) == pytest.approx([len(values) / (len(values) - 1) * a for a in one(values, dr_grpo)], abs=1e-9)


@given(values=VALUES, raised=st.integers(1, 5))
def test_the_baseline_does_not_depend_on_the_rollouts_own_reward(values, raised):
    more = [values[0] + raised, *values[1:]]
    assume(len(set(values)) > 1 and len(set(more)) > 1)
    assert one(more)[0] - one(values)[0] == pytest.approx(raised)


def test_each_group_has_its_own_size():
    out = rloo(inputs([(1.0, 0, True), (0.0, 0, True), (1.0, 1, True), (0.0, 1, True), (0.0, 1, True)])).tolist()
    assert out == pytest.approx([1, -1, 1, -0.5, -0.5])
