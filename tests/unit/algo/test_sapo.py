"""algo.loss.sapo."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.losses import coefficients, loss_inputs
from vlmrl.algo.loss.sapo import sapo


@pytest.mark.parametrize(("ratio", "adv", "c"), [(1.5, 1, 1.41002), (1.5, -1, -1.40121), (1.0, 2, 2), (1.0, -2, -2), (1.5, 0, 0)])
def test_sapo(ratio, adv, c):
    assert coefficients(sapo, loss_inputs([[(ratio, adv)]]))[0] == pytest.approx([c], abs=1e-5)


def test_sapo_value():
    x = loss_inputs([[(1.0, 1.0), (1.0, -1.0)]])
    assert sapo(x).loss_BT[0].tolist() == pytest.approx([-2.0, 2 / 1.05])


@given(far=st.floats(6.0, 400.0))
def test_sapo_fades_and_never_turns(far):
    near, away = coefficients(sapo, loss_inputs([[(5.0, 1.0), (far, 1.0)]]))[0]
    assert near > away >= 0


def test_sapo_refuses_a_temperature_of_0():
    with pytest.raises(ValueError, match="tau_negative 0"):
        sapo(loss_inputs([[(1.0, 1.0)]]), tau_negative=0.0)
