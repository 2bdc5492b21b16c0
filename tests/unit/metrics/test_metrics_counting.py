"""metrics.counting: the printed set, from raw text as well, and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.answers.tags import answer_view
from vlmrl.metrics.counting import counting
from vlmrl.metrics.numbers import parse_count

PRED, GOLD = [3, 5, 9, None, 10], [3, 6, 6, 4, 10]


def test_the_printed_set() -> None:
    found = counting(PRED, GOLD)
    assert (found.n, found.accuracy, found.parse_rate, found.off_by_one) == (5, 0.4, 0.8, 0.6)
    assert found.mae == 1.0
    assert found.rmse == pytest.approx(1.581139, abs=1e-6)
    assert found.mae_with_fail == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *[("seven", 7), ("7.0", 7), ("1,024", 1024), ("7 or 8", None)],
        ("<think>I see 3, no, 4.</think><answer>7</answer>", 7),
        ("<think>one <answer>9</answer></think><answer>seven</answer>", 7),
        ("<answer>6</answer> Let me count again. <answer>7</answer>", 7),
        ("<think>There are 7", None),  # cut off: what was thought so far is no answer
        ("There are 7.", 7),
    ],
)
def test_counts_are_read_from_the_answer_alone(text: str, count: int | None) -> None:
    assert parse_count(answer_view(text)) == count


def test_nothing_readable() -> None:
    found = counting([None, None], [3, -5])
    assert (found.mae, found.rmse) == (None, None)
    assert (found.accuracy, found.off_by_one, found.parse_rate, found.mae_with_fail) == (0, 0, 0, 4)


def test_errors() -> None:
    for pred, gold in (([], []), ([1], [1, 2])):
        with pytest.raises(ValueError, match="give one each"):
            counting(pred, gold)


pairs = st.lists(st.tuples(st.none() | st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=20)


@given(pairs)
def test_properties(rows: list[tuple[int | None, int]]) -> None:
    found = counting([p for p, _ in rows], [g for _, g in rows])
    assert 0 <= found.accuracy <= found.off_by_one <= found.parse_rate <= 1
    assert (found.mae is None) == (found.parse_rate == 0)
    if found.mae is not None and found.rmse is not None:
        assert found.mae <= found.rmse + 1e-12  # the quadratic mean is never below the mean
    read_as_zero = [0 if p is None else p for p, _ in rows]
    assert found.mae_with_fail == pytest.approx(counting(read_as_zero, [g for _, g in rows]).mae)
