"""sampling.budget: fixed and knapsack, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmrl.protocols import budget
from vlmrl.sampling.budget import fixed, gain, knapsack, sqrt_law, value
from vlmrl.sampling.ledger import LedgerRow


def rows(*rates: float | None) -> list[LedgerRow]:
    return [LedgerRow() if p is None else LedgerRow(count=100, mean=p, passes=round(100 * p)) for p in rates]


def splits(n: int, total: int, low: int) -> Iterator[list[int]]:
    if n == 1:
        yield [total]
        return
    for first in range(low, total - low * (n - 1) + 1):
        yield from ([first, *rest] for rest in splits(n - 1, total - first, low))


def test_fixed():
    assert fixed(rows(0.1, 0.2, None), 24) == [8, 8, 8]
    assert fixed(rows(0.1, 0.2, None), 8) == [3, 3, 2]
    assert budget.bind("fixed")(rows(0.5), 4) == [4]
    with pytest.raises(ValueError, match="0 prompts"):
        fixed([], 4)


def test_knapsack():
    rates = (0.05, 0.3, 0.5, 0.95)
    got = knapsack(rows(*rates), 32)
    assert got == [12, 11, 7, 2]
    assert sum(value(p, n) for p, n in zip(rates, got, strict=True)) == pytest.approx(0.28811, abs=5e-6)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 99), min_size=2, max_size=3), st.integers(6, 18))
def test_knapsack_is_as_good_as_trying_everything(percent: list[int], total: int):
    rates = [p / 100 for p in percent]
    got = knapsack(rows(*rates), total)

    def worth(numbers: list[int]) -> float:
        return sum(value(p, n) for p, n in zip(rates, numbers, strict=True))

    assert worth(got) == pytest.approx(max(worth(split) for split in splits(len(rates), total, 2)), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 100)), min_size=1, max_size=8), st.integers(0, 200))
def test_knapsack_spends_all_within_its_bounds(percent: list[int | None], extra: int):
    total = min(2 * len(percent) + extra, 32 * len(percent))
    got = knapsack(rows(*[None if p is None else p / 100 for p in percent]), total, high=32)
    assert sum(got) == total
    assert all(2 <= n <= 32 for n in got)


@settings(max_examples=40, deadline=None)
@given(st.permutations([0.02, 0.2, 0.33, 0.6, 0.9, 0.0, 1.0]))
def test_knapsack_follows_the_prompts(rates: list[float]):
    reference = [0.0, 0.02, 0.2, 0.33, 0.6, 0.9, 1.0]
    expected = dict(zip(reference, knapsack(rows(*reference), 40), strict=True))
    assert dict(zip(rates, knapsack(rows(*rates), 40), strict=True)) == expected
    assert expected[0.0] == expected[1.0] == 2
    assert expected[0.2] > expected[0.33] > expected[0.6] > expected[0.9]


def test_certain_prompts_get_what_is_left():
    assert knapsack(rows(0.0, 1.0, 0.5), 20, high=8) == [8, 4, 8]
    assert knapsack(rows(0.0, 0.0, 1.0), 13, high=8) == [6, 5, 2]
    assert knapsack(rows(1.0, 1.0), 7) == [4, 3]


def test_an_unseen_prompt_counts_as_the_given_rate():
    assert knapsack(rows(None, 0.5), 17) == knapsack(rows(0.5, 0.5), 17)
    assert knapsack(rows(None, 0.5), 17, unseen=1.0) == [2, 15]


@given(st.floats(0, 1), st.integers(1, 60))
def test_gains_fall_and_add_up(p: float, n: int):
    assert gain(p, n) == pytest.approx(value(p, n + 1) - value(p, n), abs=1e-12)
    assert 0 <= gain(p, n + 1) <= gain(p, n)
    assert value(p, 1) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("bad", [{"low": 0}, {"low": 5, "high": 4}, {"unseen": 1.5}])
def test_arguments_are_checked(bad: dict):
    with pytest.raises(ValueError, match="budget 'knapsack'"):
        knapsack(rows(0.5), 4, **bad)
    for total in (3, 129 * 2):
        with pytest.raises(ValueError, match="between 4 and 256 are possible"):
            knapsack(rows(0.5, 0.1), total)


def test_sqrt_law() -> None:
    # 24 * sqrt(p (1 - p)) over their sum: 6.55, 10.91, 6.55
    assert sqrt_law(rows(0.1, 0.5, 0.9), 24) == [7, 11, 6]
    assert sqrt_law(rows(0.0, 1.0, 0.5), 12, high=8) == [2, 2, 8]
    assert sqrt_law(rows(0.0, 1.0), 8) == [4, 4], "no prompt has any deviation"
    assert sqrt_law(rows(None, 0.5), 8) == [4, 4]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=3), st.integers(0, 12))
def test_sqrt_law_is_as_good_as_trying_everything(percent: list[int], extra: int) -> None:
    rates, total = [p / 100 for p in percent], 2 * len(percent) + extra
    got = sqrt_law(rows(*rates), total)

    def variance(given: tuple[int, ...] | list[int]) -> float:
        return sum(p * (1 - p) / n for p, n in zip(rates, given, strict=True))

    every = itertools.product(range(2, total + 1), repeat=len(rates))
    assert sum(got) == total
    assert variance(got) == pytest.approx(min(variance(one) for one in every if sum(one) == total))


def test_sqrt_law_refuses_its_arguments() -> None:
    with pytest.raises(ValueError, match="sqrt_law"):
        sqrt_law(rows(0.5), 4, low=0)
    with pytest.raises(ValueError, match="rollouts for 1 prompts"):
        sqrt_law(rows(0.5), 1)
