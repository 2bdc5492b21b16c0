"""algo.advantage.grpo against numbers computed by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo

NAN = float("nan")


def one(values, **arguments):
    return grpo(inputs([(v, 0, v == v) for v in values]), **arguments)


@pytest.mark.parametrize(
    ("rewards", "arguments", "expected"),
    [
        ([1, 0, 0, 0], {"epsilon": 0.0}, [1.5, -0.5, -0.5, -0.5]),
        ([1, 0, 0, 0], {}, [1.4997, -0.4999, -0.4999, -0.4999]),
        ([1, 0, 0, 0], {"epsilon": 0.0, "ddof": 0}, [1.7320508, -0.5773503, -0.5773503, -0.5773503]),
        ([1, NAN, 0, 0], {"epsilon": 0.0}, [1.1547005, 0, -0.5773503, -0.5773503]),
        ([0.6, 0.7, 0.5, 1.0], {"epsilon": 0.0}, [-0.4629100, 0, -0.9258201, 1.3887301]),
        ([2.0], {}, [0.0]),
    ],
)
def test_grpo(rewards, arguments, expected):
    torch.testing.assert_close(
        one(rewards, **arguments), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-4 if not arguments else 1e-6
    )


def test_groups_do_not_see_each_other():
    first = [(1.0, 0, True), (0.0, 0, True), (0.5, 0, True)]
    second = [(5.0, 7, True), (9.0, 7, True)]
    both = grpo(inputs([first[0], second[0], first[1], second[1], first[2]]))
    torch.testing.assert_close(both[[0, 2, 4]], grpo(inputs(first)))
    torch.testing.assert_close(both[[1, 3]], grpo(inputs(second)))


@given(values=st.lists(st.floats(-5, 5, width=16), min_size=2, max_size=8, unique=True), scale=st.floats(0.5, 20), shift=st.floats(-9, 9))
def test_sums_to_zero_and_ignores_scale_and_shift(values, scale, shift):
    if max(values) - min(values) < 1e-2:
        return
    out = one(values, epsilon=0.0)
    assert abs(float(out.sum())) < 1e-9
    torch.testing.assert_close(one([v * scale + shift for v in values], epsilon=0.0), out, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("right", "n"), [(1, 8), (3, 8), (7, 8)])
def test_ratio_of_binary_advantages(right, n):
    out = one([1.0] * right + [0.0] * (n - right))
    assert float(-out[0] / out[-1]) == pytest.approx((n - right) / right)
