"""metrics.numbers: printed vectors and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.numbers import mean_relative_accuracy, parse_count, parse_number, relative_error


@pytest.mark.parametrize(
    ("pred", "gold", "value"),
    [(100, 100, 1), (95, 100, 1), (90, 100, 0.9), (75, 100, 0.6), (50, 100, 0.1), (49, 100, 0), (150, 100, 0.1), (3, 4, 0.6), (5, 4, 0.6)],
)
def test_mean_relative_accuracy_vectors(pred: float, gold: float, value: float) -> None:
    assert mean_relative_accuracy(pred, gold) == pytest.approx(value)


@pytest.mark.parametrize("gold", [0.1, 0.3, 0.7, 1.1, 3.3, 7, 1e-3, 123456.7])
def test_a_threshold_is_reached_whatever_the_last_bit(gold: float) -> None:
    """Errors of exactly 5%, 10%, ..., 50% of numbers that binary fractions only come near to."""
    for step in range(1, 11):
        assert mean_relative_accuracy(gold * (1 + step / 20), gold) == pytest.approx((11 - step) / 10)
        assert mean_relative_accuracy(gold * (1 - step / 20), gold) == pytest.approx((11 - step) / 10)


def test_gold_of_zero() -> None:
    assert mean_relative_accuracy(0, 0) == 1
    assert mean_relative_accuracy(1e-6, 0) == 0
    assert relative_error(1, 0) == float("inf")


@given(st.floats(0.1, 1e6), st.floats(0, 3), st.floats(0, 3))
def test_accuracy_falls_with_the_error(gold: float, near: float, far: float) -> None:
    near, far = sorted((near, far))
    assert 0 <= mean_relative_accuracy(gold * (1 + far), gold) <= mean_relative_accuracy(gold * (1 + near), gold) <= 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("seven", 7),
        ("7.0", 7),
        ("1,024", 1024),
        ("7 or 8", None),
        ("There are 7, I count 7.", 7),
        ("35%", 35),
        ("-3", -3),
        ("3-5", None),
        ("2.5", 2.5),
        ("3,4", None),
        ("1.2.3", None),
        ("room7", None),
        ("Twenty", 20),
        ("none", None),
        ("", None),
        ("9" * 40, None),
    ],
)
def test_parse_number(text: str, value: float | None) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(("text", "value"), [("7.0", 7), ("2.5", None), ("four", 4), ("4 and 4", 4), ("a few", None)])
def test_parse_count(text: str, value: int | None) -> None:
    assert parse_count(text) == value


@given(st.integers(-999_999, 999_999))
def test_numbers_are_read_back(value: int) -> None:
    assert parse_count(str(value)) == value
    assert parse_count(f"{value:,}") == value
