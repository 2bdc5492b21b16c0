"""algo.reward_shaping.soft_overlong: the ramp of arXiv:2503.14476, eq. 13."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.reward_shaping.soft_overlong import penalty, soft_overlong


def shaped(lengths, rewards=None, **arguments):
    x = inputs([(r, 0, r == r) for r in rewards or [0.0] * len(lengths)])
    x = dataclasses.replace(x, length_N=torch.tensor(lengths, dtype=torch.int64))
    return soft_overlong(x.rewards_NK, x.valid_N, x, reward="task", **arguments)[:, 0].tolist()


def test_soft_overlong():
    assert shaped([0, 16384, 17408, 18432, 20480, 30000]) == [0, 0, -0.25, -0.5, -1, -1]
    assert shaped([18432], rewards=[1.0], factor=0.4) == [0.8]
    assert shaped([100, 75, 50], rewards=[1.0, 1.0, float("nan")], maximum=100, buffer=50)[:2] == [0.0, 0.5]


@given(a=st.integers(0, 300), b=st.integers(0, 300), maximum=st.integers(1, 200), buffer=st.integers(1, 200), factor=st.floats(0, 2))
def test_falls_from_zero_to_minus_factor(a, b, maximum, buffer, factor):
    buffer = min(buffer, maximum)
    short, long = penalty(torch.tensor(sorted((a, b))), maximum=maximum, buffer=buffer, factor=factor).tolist()
    assert -factor <= long <= short <= 0
    assert short == 0 or min(a, b) > maximum - buffer
    if abs(a - b) <= 1:
        assert short - long <= factor / buffer + 1e-9


@pytest.mark.parametrize("wrong", [{"buffer": 0}, {"buffer": 300, "maximum": 200}, {"factor": -1.0}])
def test_impossible_ramps_are_refused(wrong):
    with pytest.raises(ValueError, match="needs 0 < buffer <= maximum"):
        shaped([1], **wrong)
