"""Advantage `pshw`: hard prompts weigh more."""

from __future__ import annotations

import pytest

from tests.support.builders import inputs
from vlmrl.zoo.advantage.pshw import pshw


@pytest.mark.parametrize(("right", "positive", "negative"), [(1, 2.534, -0.362), (4, 1.256, -1.256), (7, 0.266, -1.862)])
def test_pshw_by_hand(right, positive, negative):
    x = inputs([(1.0 if i < right else 0.0, 0, True) for i in range(8)])
    out = pshw(x).tolist()
    assert out[0] == pytest.approx(positive, abs=1e-3)
    assert out[-1] == pytest.approx(negative, abs=1e-3)
    assert sum(out) == pytest.approx(0.0, abs=1e-12)


def test_pshw_takes_other_ranges_of_rewards():
    plain = pshw(inputs([(1.0, 0, True), (0.0, 0, True), (0.0, 0, True)]))
    signed = pshw(inputs([(1.0, 0, True), (-1.0, 0, True), (-1.0, 0, True)]), low=-1.0)
    assert signed.tolist() == pytest.approx(plain.tolist())


def test_pshw_refuses_its_arguments():
    with pytest.raises(ValueError, match="pshw"):
        pshw(inputs([(1.0, 0, True)]), low=1.0, high=1.0)
