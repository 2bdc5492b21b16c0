"""algo.constraint.adaptive_kl."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.algo.constraint import PartialMean, constraint
from vlmrl.algo.constraint.adaptive_kl import adaptive_kl


def after(beta: float, kl: float, **more) -> float:
    return adaptive_kl({"kl": beta}, {"kl": PartialMean(50 * kl, 50)}, target=6.0, **more)["kl"]


def test_adaptive_kl():
    assert after(0.1, 6.0) == pytest.approx(0.1)
    assert after(0.1, 6.6) == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    assert after(0.1, 60.0) == pytest.approx(0.1 * 1.02)
    assert after(0.1, 0.0) == pytest.approx(0.1 * 0.98)
    assert after(0.1, 12.0, gain=0.5, clip=0.4) == pytest.approx(0.1 * 1.2)


def test_start_and_steps_without_measurement():
    update = constraint.bind("adaptive_kl", {"target": 0.05, "start": 0.004})
    assert update({}, {}) == {"kl": 0.004}
    assert update({"kl": 0.02}, {"kl": PartialMean(0.0, 0)}) == {"kl": 0.02}
    assert constraint.get("adaptive_kl").extra["acts_on"] == "beta"


@given(st.floats(1e-6, 1.0), st.lists(st.floats(-1, 30), min_size=1, max_size=20))
def test_beta_stays_in_bounds_and_moves_the_right_way(beta: float, measured: list[float]):
    other = beta
    for kl in measured:
        new = after(beta, kl)
        assert 1e-6 <= new <= 1.0
        assert new >= beta if kl > 6 else new <= beta
        other = adaptive_kl(json.loads(json.dumps({"kl": other})), {"kl": PartialMean(50 * kl, 50)}, target=6.0)["kl"]
        beta = new
        assert other == beta


def test_it_finds_the_coefficient_that_holds_the_target():
    """A divergence that falls with beta as 0.01 / beta meets the target 0.1 at beta 0.1."""
    beta = 0.002
    for _ in range(600):
        beta = adaptive_kl({"kl": beta}, {"kl": PartialMean(0.01 / beta, 1)}, target=0.1)["kl"]
    assert beta == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize("bad", [{"target": 0.0}, {"gain": -1.0}, {"clip": 20.0}, {"start": 2.0}, {"low": 0.0}])
def test_arguments_are_checked(bad: dict):
    with pytest.raises(ValueError, match="constraint 'adaptive_kl'"):
        adaptive_kl({}, {}, **({"target": 1.0} | bad))
