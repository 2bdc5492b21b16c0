"""algo.loss.asymre."""

from __future__ import annotations

import pytest
import torch

from tests.support.losses import coefficients, loss_inputs, total
from vlmrl.zoo.loss.asymre import asymre

ROWS = [[(1.0, 0.75)], [(3.0, -0.25)], [(0.1, -0.25)], [(1.0, -0.25)]]
"""Rewards 1, 0, 0, 0 less their mean; the ratio must not matter."""


def test_asymre_on_one_right_answer_of_four():
    assert [c[0] for c in coefficients(asymre, loss_inputs(ROWS))] == pytest.approx([0.85, -0.15, -0.15, -0.15])


def test_asymre_without_a_shift_is_reinforce():
    x = loss_inputs(ROWS, [[-1.0], [-2.0], [-3.0], [-4.0]])
    assert [c[0] for c in coefficients(asymre, x, shift=0.0)] == [0.75, -0.25, -0.25, -0.25]
    assert float(total(asymre(x, shift=0.0), x).detach()) == pytest.approx(0.75 - 0.5 - 0.75 - 1.0)


def test_asymre_can_leave_rows_of_the_policy_alone():
    x = loss_inputs(ROWS, offpolicy_B=torch.tensor([True, False, True, False]))
    assert [c[0] for c in coefficients(asymre, x, rows="offpolicy")] == pytest.approx([0.85, -0.25, -0.15, -0.25])


def test_asymre_shifts_a_row_of_equal_rewards_too():
    assert coefficients(asymre, loss_inputs([[(1.0, 0.0), (1.0, 0.0)]]), shift=-0.2) == [[0.2, 0.2]]


def test_asymre_names_what_is_missing():
    with pytest.raises(ValueError, match=r"'asymre' needs LossInputs\.offpolicy_B"):
        asymre(loss_inputs(ROWS), rows="offpolicy")
