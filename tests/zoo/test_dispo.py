"""algo.loss.dispo."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.losses import coefficients, loss_inputs
from vlmrl.algo.loss.cispo import cispo
from vlmrl.zoo.loss.dispo import dispo

TOKENS = st.lists(st.tuples(st.floats(0.01, 20.0), st.floats(-3, 3)), min_size=1, max_size=6)


def test_dispo_has_two_bounds_for_each_sign():
    found = coefficients(
        dispo,
        loss_inputs([[(0.5, 1.0), (3.0, 1.0), (0.5, -1.0), (3.0, -1.0)]]),
        positive_min=0.8,
        positive_max=1.5,
        negative_min=0.6,
        negative_max=2.5,
    )
    assert found == [pytest.approx([0.8, 1.5, -0.6, -2.5])]


@given(tokens=TOKENS)
def test_dispo_with_equal_bounds_is_cispo(tokens):
    x = loss_inputs([tokens])
    assert torch.equal(dispo(x).loss_BT, cispo(x).loss_BT)
    four = {"positive_min": 0.5, "positive_max": 2.0, "negative_min": 0.5, "negative_max": 2.0}
    assert torch.equal(dispo(x, **four).loss_BT, cispo(x, ratio_min=0.5, ratio_max=2.0).loss_BT)


@given(tokens=TOKENS)
def test_dispo_bounds_of_wrong_answers_leave_right_ones_alone(tokens):
    x = loss_inputs([tokens])
    before, after = coefficients(dispo, x)[0], coefficients(dispo, x, negative_min=0.9, negative_max=1.1)[0]
    assert [c for c, (_, a) in zip(before, tokens, strict=True) if a > 0] == [c for c, (_, a) in zip(after, tokens, strict=True) if a > 0]


def test_dispo_refuses_bounds_that_do_not_hold_1():
    with pytest.raises(ValueError, match=r"negative_min and negative_max are 0\.0 and 0\.5"):
        dispo(loss_inputs([[(1.0, 1.0)]]), negative_max=0.5)
