"""metrics.circular: the printed vectors, rotations, and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.circular import Circular, Pairs, circular_accuracy, pair_accuracy, rotations


def bits(text: str) -> list[bool]:
    return [c == "1" for c in text]


def test_circular_vector() -> None:
    found = circular_accuracy({"q1": bits("1111"), "q2": bits("1101"), "q3": bits("0000"), "q4": bits("11")})
    assert (found.first, found.circular) == (0.75, 0.5)
    assert found.mean == pytest.approx(0.642857, abs=1e-6)  # 9 of 14 rotations


def test_pair_vector() -> None:
    assert pair_accuracy(bits("11100011")) == Pairs(individual=5 / 8, pair=2 / 4)
    assert pair_accuracy(bits("110"[:2]), ["a", "a"]) == Pairs(individual=1, pair=1)
    assert pair_accuracy(bits("1010"), ["a", "b", "a", "b"]) == Pairs(individual=0.5, pair=0.5)  # rows of a pair need not be neighbours


def test_rotations() -> None:
    assert rotations(["x", "y", "z"], 1) == [(["x", "y", "z"], 1), (["y", "z", "x"], 0), (["z", "x", "y"], 2)]
    assert rotations(["x"], 0) == [(["x"], 0)]


@given(st.lists(st.integers(), min_size=1, max_size=8, unique=True), st.data())
def test_the_right_option_stays_right(options: list[int], data: st.DataObject) -> None:
    gold = data.draw(st.integers(0, len(options) - 1))
    made = rotations(options, gold)
    assert all(turned[place] == options[gold] and sorted(turned) == sorted(options) for turned, place in made)
    assert sorted(place for _, place in made) == list(range(len(options)))  # it stands at every letter once


@given(st.dictionaries(st.integers(), st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6))
def test_all_rotations_are_never_more_than_one(right: dict[int, list[bool]]) -> None:
    found = circular_accuracy(right)  # type: ignore[arg-type]
    assert 0 <= found.circular <= min(found.first, found.mean) <= max(found.first, found.mean) <= 1
    assert circular_accuracy({name: [answers[0]] for name, answers in right.items()}) == Circular(
        first=found.first, circular=found.first, mean=found.first
    )


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="no questions"):
        circular_accuracy({})
    with pytest.raises(ValueError, match="question 'q2' has no answers"):
        circular_accuracy({"q1": [True], "q2": []})
    with pytest.raises(ValueError, match="pair 1 has 1 rows"):
        pair_accuracy(bits("111"))
    with pytest.raises(ValueError, match="2 rows and 1 names"):
        pair_accuracy(bits("11"), ["a"])
    with pytest.raises(ValueError, match="0 rows"):
        pair_accuracy([])
    with pytest.raises(ValueError, match="number 2, but there are 2 options"):
        rotations(["x", "y"], 2)
    with pytest.raises(ValueError, match="number -1"):
        rotations(["x"], -1)
