"""algo.reward_shaping.tempsamp_nonlinear: the values of arXiv:2509.18056, eq. 4."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.algo.reward_shaping.tempsamp import nonlinear, tempsamp_nonlinear

VALUES = {
    0: 0.0868, 0.1: 0.2100, 0.2: 0.3215, 0.3: 0.4225, 0.4: 0.5138, 0.5: 0.5964, 0.6: 0.6711,
    0.7: 0.7388, 0.79: 0.7942, 0.8: 0.8, 0.9: 0.8010, 1: 0.8018,
}  # fmt: skip


def f(*r: float) -> torch.Tensor:
    return nonlinear(torch.tensor(r, dtype=torch.float64), tau=0.8, alpha_hi=0.01, alpha_lo=1.0)


def shaped(rows):
    x = inputs(rows)
    return tempsamp_nonlinear(x.rewards_NK, x.valid_N, x, reward="task")[:, 0]


def test_tempsamp_nonlinear():
    rows = [(float(r), 0, True) for r in VALUES]
    assert shaped(rows).tolist() == pytest.approx(list(VALUES.values()), abs=1e-4)


@given(a=st.floats(0, 1), b=st.floats(0, 1))
def test_increasing(a, b):
    low, high = sorted((a, b))
    out = f(low, high)
    assert out[0] < out[1] if high - low > 1e-9 else out[0] <= out[1]


def test_continuous_flat_above_and_steeper_the_lower():
    assert float(f(0.8)) == 0.8
    assert float(f(0.8 - 1e-9)) == pytest.approx(0.8, abs=1e-8)
    assert float(f(1.0) - f(0.8)) < 0.002
    slope = lambda r: float((f(r + 1e-6) - f(r)) / 1e-6)  # noqa: E731
    assert slope(0.79999) == pytest.approx(0.58, abs=5e-3)
    assert slope(0.0) == pytest.approx(1.295, abs=5e-3)


def test_the_limit_of_alpha_lo_is_the_reward_itself():
    r = torch.tensor([0.0, 0.3, 0.8], dtype=torch.float64)
    assert nonlinear(r, tau=0.8, alpha_hi=0.01, alpha_lo=0.0).tolist() == pytest.approx([0, 0.3, 0.8])
    torch.testing.assert_close(nonlinear(r, tau=0.8, alpha_hi=0.01, alpha_lo=1e-6), r, rtol=0, atol=1e-6)


def test_the_example_group():
    raw = [(0.6, 0, True), (0.7, 0, True), (0.5, 0, True), (1.0, 0, True)]
    assert grpo(inputs(raw), epsilon=0.0).tolist() == pytest.approx([-0.463, 0, -0.926, 1.389], abs=1e-3)
    after = [(float(v), 0, True) for v in shaped(raw)]
    assert grpo(inputs(after), epsilon=0.0).tolist() == pytest.approx([-0.350, 0.416, -1.196, 1.129], abs=1e-3)
