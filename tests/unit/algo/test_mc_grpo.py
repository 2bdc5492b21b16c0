"""algo.advantage.mc_grpo against numbers computed by hand."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.mc_grpo import mc_grpo, mc_grpo_pivot, pivot

NAN = float("nan")


def one(values, **arguments):
    return mc_grpo(inputs([(v, 0, v == v) for v in values]), **arguments).tolist()


@pytest.mark.parametrize(
    ("rewards", "arguments", "expected"),
    [
        ([0.2, 0.9, 0.4, 0, 0.6], {}, [-0.9950, 2.4876, 0, -1.9900, 0.9950]),
        ([1, 0, 0, 0, 0], {"epsilon": 0.0}, [2.2361, 0, 0, 0, 0]),
        ([0, 1, 1, 1, 1], {"epsilon": 0.0}, [-2.2361, 0, 0, 0, 0]),
        # an even number: the lower median 1 of 0 1 2 9, and of the distances 0 1 1 8
        ([9, 0, 1, 2], {"epsilon": 0.0}, [8, -1, 0, 1]),
        ([9, 0, NAN, 1, 2], {"epsilon": 0.0}, [8, -1, 0, 0, 1]),
        ([5.0], {}, [0]),
        ([0.1] * 7, {}, [0] * 7),
    ],
)
def test_mc_grpo(rewards, arguments, expected):
    assert one(rewards, **arguments) == pytest.approx(expected, abs=5e-5)


def test_rounding_is_no_distance():
    """Four rewards are 0.3 added up in different orders: a deviation of 6e-17 from the median scales nothing, and they get exactly 0."""
    values = [0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2, 1.0]
    assert one(values, epsilon=0.0) == pytest.approx([0, 0, 0, 0, 0.7 / statistics.stdev(values)])
    assert one(values)[:4] == [0.0] * 4


@given(values=st.lists(st.integers(-9, 9), min_size=5, max_size=9), raised=st.integers(1, 100))
def test_an_outlier_moves_nobody_else(values, raised):
    top = max(values)
    place = values.index(top)
    middle = statistics.median_low(values)
    mad = statistics.median_low([abs(v - middle) for v in values])
    assume(mad > 0 and top - middle > mad)
    before, after = one(values), one([v + raised if i == place else v for i, v in enumerate(values)])
    assert [a for i, a in enumerate(after) if i != place] == pytest.approx([a for i, a in enumerate(before) if i != place])
    assert after[place] > before[place]


def test_mc_grpo_pivot_is_one_per_group_the_first_of_several_and_never_unjudged():
    rows = [(1.0, 0, True), (0.0, 3, True), (0.0, 0, True), (NAN, 0, False), (0.0, 0, True), (0.0, 0, True), (NAN, 5, False)]
    x = inputs(rows)
    assert pivot(x).tolist() == [False, True, True, False, False, False, False]
    keep, reason = mc_grpo_pivot(x)
    assert keep.tolist() == [True, False, False, True, True, True, True]
    assert reason == "mc_grpo_pivot"


@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_of_a_group_all_but_one_train_and_the_pivot_has_advantage_zero(values):
    x = inputs([(float(v), 0, True) for v in values])
    keep, _ = mc_grpo_pivot(x)
    assert int(keep.sum()) == len(values) - 1
    assert mc_grpo(x)[~keep].tolist() == [0.0]
    assert torch.equal(x.reward_N[~keep], torch.tensor([statistics.median_low(values)], dtype=torch.float64))
