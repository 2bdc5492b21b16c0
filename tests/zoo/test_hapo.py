"""Advantage `hapo`: z-scores over the tokens of a group."""

from __future__ import annotations

import pytest

from tests.unit.algo.test_opo import of
from vlmrl.zoo.advantage.hapo import hapo


def test_hapo_by_hand():
    # tokens 1, 0, 0, 0: mean 0.25, population deviation 0.433
    assert hapo(of([(1.0, 1), (0.0, 3)]), epsilon=0.0).tolist() == pytest.approx([1.7321, -0.5774], abs=1e-4)
    assert hapo(of([(1.0, 2), (0.0, 2)]), epsilon=0.0).tolist() == pytest.approx([1.0, -1.0])


def test_hapo_has_a_mean_of_0_over_tokens():
    x = of([(0.2, 3), (0.9, 7), (0.5, 1), (0.0, 12)])
    assert float((x.length_N * hapo(x)).sum()) == pytest.approx(0.0, abs=1e-9)


def test_hapo_falls_back_to_the_group_where_an_advantage_is_wild():
    # one right token among 100: 9.95 deviations; the plain group has +1 and -1
    assert hapo(of([(1.0, 1), (0.0, 99)]), epsilon=0.0).tolist() == pytest.approx([1.0, -1.0])
    assert hapo(of([(1.0, 1), (0.0, 99)]), epsilon=0.0, guard=20.0)[0] == pytest.approx(9.9499, abs=1e-4)


def test_hapo_refuses_its_argument():
    with pytest.raises(ValueError, match="hapo"):
        hapo(of([(1.0, 1)]), guard=0.0)
