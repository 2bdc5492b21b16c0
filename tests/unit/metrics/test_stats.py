"""metrics.stats against numbers of published formulas."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics import stats

X = [1, 1, 0, 1, 0, 0, 1, 1]
A, B = [1, 1, 0, 1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 1, 1, 1, 1, 0]


def test_bootstrap():
    assert stats.bootstrap_interval(X, np.random.Generator(np.random.Philox(0))) == pytest.approx((0.25, 0.875), abs=0.07)
    same = stats.bootstrap_interval([0, 0, 1, 1], np.random.Generator(np.random.Philox(1)), clusters="aabb")
    assert same == (0.0, 1.0)


def test_a_share_of_a_video_is_resampled_whole():
    # Two videos of 20 questions each, one wholly better and one wholly worse.
    d = [1.0] * 20 + [-0.75] * 20
    _, _, p_alone = stats.bootstrap_test(d, np.random.default_rng(0), clusters=[str(n) for n in range(40)])
    low, high, p = stats.bootstrap_test(d, np.random.default_rng(0), clusters=["x"] * 20 + ["y"] * 20)
    assert (low, high) == (-0.75, 1.0)
    # Of the draws (x,x), (x,y), (y,x), (y,y) a quarter is below 0: p = 0.5, which is also the floor 2^(1-2).
    assert p == pytest.approx(0.5, abs=0.06)
    # As 40 single questions k of which are better, the mean is below 0 for k <= 17: 2 * P(Binomial(40, 1/2) <= 17) = 0.4296.
    assert p_alone == pytest.approx(0.4296, abs=0.05)


def test_bootstrap_agrees_with_an_independent_one_and_with_the_t_test():
    d = np.random.default_rng(1).normal(0.25, 1, 80)
    low, high, p = stats.bootstrap_test(d.tolist(), np.random.default_rng(2), clusters=[str(n) for n in range(80)])
    means = np.random.default_rng(3).choice(d, (20000, 80)).mean(1)
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.03)
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.03)
    assert p == pytest.approx(2 * min((means <= 0).mean(), (means >= 0).mean()), abs=0.02)


@pytest.mark.parametrize(("m", "floor"), [(1, 1.0), (2, 0.5), (3, 0.25), (5, 1 / 16), (6, 1 / 32)])
def test_few_clusters_cannot_prove_much(m, floor):
    d = [-1.0] * m + [0.0] * 4
    _, _, p = stats.bootstrap_test(d[:m], np.random.default_rng(0), clusters=[str(n) for n in range(m)])
    assert p == floor
    assert stats.bootstrap_test(d, np.random.default_rng(0), clusters=[str(n) for n in range(m + 4)])[2] >= floor


def test_bootstrap_of_nothing_and_of_no_change():
    with pytest.raises(ValueError, match="no values"):
        stats.bootstrap_test([], np.random.default_rng(0), clusters=[])
    assert stats.bootstrap_test([0.0] * 9, np.random.default_rng(0), clusters=list("abcdefghi")) == (0.0, 0.0, 1.0)


def test_mcnemar():
    assert stats.mcnemar([bool(a) for a in A], [bool(b) for b in B]) == 1.0
    assert stats.mcnemar([False] * 6, [True] * 6) == pytest.approx(2 / 64)


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
