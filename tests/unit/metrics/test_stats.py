"""metrics.stats against numbers of published formulas."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics import stats


@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [(4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 1, 4, 1), (8, 2, 4, 0.785714), (16, 5, 8, 0.987179), (10, 0, 5, 0), (5, 4, 2, 1)],
)
def test_pass_at_k(n, c, k, value):
    assert stats.pass_at_k(n, c, k) == pytest.approx(value, abs=1e-6)


def test_pass_all_k_and_majority():
    assert stats.pass_all_k(5, 4, 2) == pytest.approx(0.6)
    assert stats.majority(["B", "A", "A", "B"]) == "B"
    assert stats.majority([None, "A", None]) == "A"
    assert stats.majority([None]) is None
    with pytest.raises(ValueError, match="k=3"):
        stats.pass_at_k(2, 1, 3)


@pytest.mark.parametrize(("n", "c", "k", "value"), [(5, 4, 2, 0.6), (4, 4, 4, 1), (4, 3, 4, 0), (8, 2, 1, 0.25), (10, 0, 5, 0)])
def test_pass_all_k(n, c, k, value):
    assert stats.pass_all_k(n, c, k) == pytest.approx(value)


@given(n=st.integers(1, 12), data=st.data())
def test_pass_at_k_grows_and_pass_all_k_falls_with_k(n, data):
    c = data.draw(st.integers(0, n))
    some, every = ([f(n, c, k) for k in range(1, n + 1)] for f in (stats.pass_at_k, stats.pass_all_k))
    assert some == sorted(some)
    assert every == sorted(every, reverse=True)
    assert some[0] == pytest.approx(c / n)
    assert every[0] == pytest.approx(c / n)
    if c < n:
        assert stats.pass_at_k(n, c + 1, n) >= some[-1]


@given(n=st.integers(1, 6), data=st.data())
def test_pass_at_k_by_all_draws(n, data):
    right = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    k = data.draw(st.integers(1, n))
    draws = list(itertools.combinations(right, k))
    assert stats.pass_at_k(n, sum(right), k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert stats.pass_all_k(n, sum(right), k) == pytest.approx(sum(map(all, draws)) / len(draws))
