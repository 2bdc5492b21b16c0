"""Dealing prompts to ranks by their work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.train.loader import cost, deal


def test_cost_by_hand() -> None:
    # P 100, 4 answers of 10: 140 tokens; pairs 100*101/2 + 4 * (1000 + 55) = 5050 + 4220 = 9270; hidden 64: 9270 / 384
    assert cost(100, 4, 10.0, hidden=64) == pytest.approx(140 + 9270 / 384)
    assert cost(100, 4, 0.0, hidden=64) == pytest.approx(100 + 5050 / 384)


def test_equal_costs_are_dealt_in_turn() -> None:
    assert deal([1.0] * 7, 3) == [0, 1, 2, 0, 1, 2, 0]
    assert deal([], 4) == []
    assert deal([5.0], 4) == [0]


def test_long_prompts_are_spread() -> None:
    # in turn rank 0 would get both long ones: 20 against 2
    assert deal([10.0, 1.0, 10.0, 1.0], 2) == [0, 0, 1, 1]


@given(st.lists(st.floats(0.1, 100), max_size=20), st.integers(1, 5))
def test_everybody_gets_the_same_number_and_no_more_than_a_turn_would(costs: list[float], ranks: int) -> None:
    dealt = deal(costs, ranks)
    counts = [dealt.count(rank) for rank in range(ranks)]
    assert max(counts) - min(counts) <= 1
    loads = [sum(c for c, r in zip(costs, dealt, strict=True) if r == rank) for rank in range(ranks)]
    # the heaviest rank is at most the mean and one place above it, and one more where numbers had to be kept equal
    assert not costs or max(loads) <= sum(costs) / ranks + 2 * max(costs)
    assert deal(costs, ranks) == dealt
