"""algo.loss.etr_proposed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.losses import coefficients, loss_inputs
from vlmrl.algo.loss.etr_proposed import elastic, etr_proposed, spread_of
from vlmrl.algo.loss.ppo_clip import ppo_clip

DEFAULT = {"clip": 0.2, "a": 0.5, "b": 0.5, "low": 0.1, "high": 0.4}


def eps(adv: float, p: float) -> float:
    return float(elastic(torch.tensor(adv).double(), torch.tensor(p * (1 - p)).double(), **DEFAULT))


@pytest.mark.parametrize(("adv", "p", "expected"), [(0.0, 0.5, 0.1875), (1.0, 0.5, 0.2827), (2.65, 0.125, 0.2412), (-0.378, 0.125, 0.1803)])
def test_etr_proposed_by_hand(adv, p, expected):
    assert eps(adv, p) == pytest.approx(expected, abs=1e-4)


@given(right=st.integers(1, 15), of=st.integers(2, 16))
def test_etr_proposed_reads_the_pass_rate_off_the_advantage(right, of):
    if right >= of:
        return
    p = right / of
    deviation = math.sqrt(p * (1 - p))
    for adv in ((1 - p) / deviation, -p / deviation):
        assert float(spread_of(torch.tensor(adv).double())) == pytest.approx(p * (1 - p))


@given(st.floats(0, 3), st.floats(0, 1))
def test_etr_proposed_is_wider_for_strong_signals_and_symmetric(adv, p):
    assert eps(adv + 0.1, p) >= eps(adv, p)
    assert eps(adv, p) == pytest.approx(eps(-adv, 1 - p))


def test_etr_proposed_without_elasticity_is_ppo():
    x = loss_inputs([[(r, a) for r in (0.7, 0.9, 1.0, 1.15, 1.27, 1.4) for a in (-1.0, 0.5)]])
    assert coefficients(etr_proposed, x, a=0.0, b=0.0) == coefficients(ppo_clip, x, clip_high=0.28)
    with pytest.raises(ValueError, match="etr_proposed"):
        etr_proposed(x, low=0.5, high=0.4)
