"""algo.advantage.ngrpo against numbers computed by hand."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.zoo.advantage.ngrpo import ngrpo

NAN = float("nan")
REWARDS = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=8)


def one(values, **arguments):
    return ngrpo(inputs([(v, 0, v == v) for v in values]), **arguments).tolist()


@pytest.mark.parametrize(
    ("rewards", "arguments", "expected"),
    [
        ([1, 0, 0, 0], {}, [1.0954, -0.7303, -0.7303, -0.7303]),
        ([0] * 4, {}, [-0.4472] * 4),
        ([0] * 8, {}, [-0.3333] * 8),
        ([0, NAN, 0, NAN, 0, 0], {}, [-0.4472, 0, -0.4472, 0, -0.4472, -0.4472]),
        ([1] * 4, {}, [0] * 4),
        ([2, 0, 0, 0], {"r_max": 2.0}, [1.0954, -0.7303, -0.7303, -0.7303]),
        # mean 2/5, sample deviation sqrt(0.3)
        ([0, 0, 0], {"virtual": 2}, [-0.7303] * 3),
        ([0, 0, 0], {"virtual": 2, "ddof": 0}, [-0.8165] * 3),
        ([0.0], {}, [0]),
        ([0.0, NAN], {}, [0, 0]),
    ],
)
def test_ngrpo(rewards, arguments, expected):
    assert one(rewards, **arguments) == pytest.approx(expected, abs=5e-5)


def test_a_group_at_the_maximum_up_to_rounding_is_exactly_zero():
    assert one([0.1 + 0.2, 0.3, 0.3], r_max=0.3) == [0.0, 0.0, 0.0]


def test_each_group_gets_its_own_virtual_rollout():
    both = ngrpo(inputs([(0.0, 4, True), (1.0, 2, True), (0.0, 4, True), (0.0, 2, True), (0.0, 4, True), (0.0, 4, True), (NAN, 7, False)]))
    assert both.tolist() == pytest.approx([-0.4472, 0.5774, -0.4472, -1.1547, -0.4472, -0.4472, 0], abs=1e-4)


@given(values=REWARDS)
def test_without_virtual_rollouts_it_is_grpo(values):
    x = inputs([(v, 0, True) for v in values])
    torch.testing.assert_close(ngrpo(x, virtual=0, epsilon=1e-4), grpo(x), rtol=0, atol=1e-12)


@given(values=REWARDS, virtual=st.integers(1, 3))
def test_equals_the_z_score_in_the_longer_list(values, virtual):
    longer = values + [1.0] * virtual
    mean, deviation = statistics.fmean(longer), statistics.stdev(longer)
    out = one(values, virtual=virtual)
    assert out == pytest.approx([(v - mean) / (deviation + 1e-6) for v in values], abs=1e-9)
    assert sum(out) <= 1e-9


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="rollout 1 of group 0 has reward 2, above r_max 1; set r_max"):
        one([0.0, 2.0])
    with pytest.raises(ValueError, match="virtual is -1"):
        one([0.0, 1.0], virtual=-1)
