"""metrics.stats against numbers of published formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics import stats

X = [1, 1, 0, 1, 0, 0, 1, 1]
A, B = [1, 1, 0, 1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 1, 1, 1, 1, 0]


def test_errors_of_a_mean():
    assert stats.clt_error(X) == pytest.approx(0.182981, abs=1e-6)
    assert stats.clustered_error(X, "aabbccdd") == pytest.approx(0.239357, abs=1e-6)
    assert stats.wilson(5, 8) == pytest.approx((0.305742, 0.863156), abs=1e-6)


def test_the_other_clustered_errors_differ_by_a_known_factor():
    """Of the three in use ours has g / (g - 1); without that factor it is 0.207289."""
    assert stats.clustered_error(X, "aabbccdd") * math.sqrt(3 / 4) == pytest.approx(0.207289, abs=1e-6)
    # each question a cluster of its own: the ordinary standard error
    assert stats.clustered_error(X, range(8)) == pytest.approx(stats.clt_error(X))
    with pytest.raises(ValueError, match="at least 2 clusters"):
        stats.clustered_error(X, "aaaaaaaa")


def test_micro_and_macro():
    groups = [[1] * 9 + [0], [1, 0]]
    assert stats.micro_mean(groups) == pytest.approx(0.833333, abs=1e-6)
    assert stats.macro_mean(groups) == pytest.approx(0.7)
    assert stats.micro_mean([[0.25], []]) == stats.macro_mean([[0.25]]) == 0.25
    with pytest.raises(ValueError, match="no values"):
        stats.micro_mean([[]])
    with pytest.raises(ValueError, match="2 groups, 1 of them empty"):
        stats.macro_mean([[1], []])
    with pytest.raises(ValueError, match="0 groups"):
        stats.macro_mean([])


def test_bootstrap():
    assert stats.bootstrap_interval(X, np.random.Generator(np.random.Philox(0))) == pytest.approx((0.25, 0.875), abs=0.07)
    same = stats.bootstrap_interval([0, 0, 1, 1], np.random.Generator(np.random.Philox(1)), clusters="aabb")
    assert same == (0.0, 1.0)


def test_paired():
    out = stats.paired_t(A, B)
    assert out.difference == pytest.approx(0.1)
    assert (out.standard_error, out.t, out.p) == pytest.approx((0.179505, 0.557086, 0.591051), abs=1e-6)
    assert (out.low, out.high) == pytest.approx((-0.30607, 0.50607), abs=1e-5)
    assert stats.mcnemar([bool(a) for a in A], [bool(b) for b in B]) == 1.0
    assert stats.mcnemar([False] * 6, [True] * 6) == pytest.approx(2 / 64)
    low, high = stats.paired_bootstrap(A, B, np.random.Generator(np.random.Philox(0)))
    assert low < 0.1 < high


def test_one_pair_is_no_evidence():
    out = stats.paired_t([0], [1])
    assert (out.difference, out.p, out.low) == (1.0, 1.0, -math.inf)
    with pytest.raises(ValueError):
        stats.paired_t([0.0, 1.0], [1.0])


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
