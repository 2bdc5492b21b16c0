"""metrics.stats against numbers of published formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vlmrl.metrics import stats

X = [1, 1, 0, 1, 0, 0, 1, 1]
A, B = [1, 1, 0, 1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 1, 1, 1, 1, 0]


def test_errors_of_a_mean():
    assert stats.clt_error(X) == pytest.approx(0.182981, abs=1e-6)
    assert stats.clustered_error(X, "aabbccdd") == pytest.approx(0.239357, abs=1e-6)
    assert stats.wilson(5, 8) == pytest.approx((0.305742, 0.863156), abs=1e-6)


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
