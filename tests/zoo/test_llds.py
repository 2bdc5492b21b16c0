"""Auxiliary loss `llds`."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.losses import coefficients, loss_inputs, metric, total
from vlmrl.zoo.auxiliary.llds import llds


def of(old, new, adv=1.0):
    return loss_inputs([[(math.exp(b - a), adv) for a, b in zip(old, new, strict=True)]], [new])


def test_llds_by_hand():
    fallen = of([-1.0, -2.0, -0.5], [-1.5, -1.8, -0.9])
    assert float(total(llds(fallen), fallen).detach()) == pytest.approx(0.9)
    assert coefficients(llds, fallen) == [[1.0, 0.0, 1.0]]
    risen = of([-1.0, -2.0, -0.5], [-1.5, -1.2, -0.6])
    assert float(total(llds(risen), risen).detach()) == 0.0


def test_llds_leaves_wrong_answers_alone():
    wrong = of([-1.0], [-1.5], adv=-1.0)
    assert float(total(llds(wrong), wrong).detach()) == 0.0
    assert float(total(llds(wrong, rows="all"), wrong).detach()) == pytest.approx(0.5)
    assert metric(llds, wrong, "answers") == (0.0, 1.0)


@given(st.lists(st.floats(-5, 0), min_size=1, max_size=6), st.floats(-1, 1))
def test_llds_only_raises_log_probs(new, shift):
    x = of([value + shift for value in new], new)
    assert (llds(x).loss_BT >= 0).all()
    assert all(c >= 0 for c in coefficients(llds, x)[0])
