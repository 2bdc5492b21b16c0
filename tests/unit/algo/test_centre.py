"""algo.advantage.centre: the shared formula and its statistics."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.centre import batch_std, centre_scale, median, only, weighted_moments

NAN = float("nan")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def test_formula_with_every_part():
    x = inputs([(4.0, 0, True), (1.0, 0, True), (NAN, 0, False)])
    out = centre_scale(x, baseline_N=f64([1, 2, NAN]), scale_N=f64([2, 4, NAN]), phi_N=f64([10, 100, NAN]), epsilon=1.0)
    assert out.tolist() == [10.0, -20.0, 0.0]


def test_defaults_are_the_centred_reward():
    x = inputs([(4.0, 0, True), (1.0, 0, True), (1.0, 0, True), (7.0, 1, True), (7.0, 1, True), (9.0, 2, True)])
    assert centre_scale(x).tolist() == [2.0, -1.0, -1.0, 0.0, 0.0, 0.0]


def test_rounding_within_a_group_is_exactly_zero():
    x = inputs([(0.1 + 0.2, 0, True), (0.3, 0, True), (0.3, 0, True)])
    assert centre_scale(x, phi_N=f64([1e9] * 3)).tolist() == [0.0, 0.0, 0.0]


def test_only_hides_what_stands_elsewhere():
    value = f64([1.0, NAN, float("inf")]).requires_grad_()
    out = only(value, torch.tensor([True, False, False]))
    assert out.tolist() == [1.0, 0.0, 0.0]
    assert not out.requires_grad


def test_batch_std_ignores_groups_and_what_is_not_counted():
    out = batch_std(f64([1, 0, NAN, 0, 0]), torch.tensor([True, True, False, True, True]), ddof=1)
    assert out.tolist() == pytest.approx([statistics.stdev([1, 0, 0, 0])] * 5)


@given(pairs=st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4), st.booleans()), max_size=8), ddof=st.sampled_from([0, 1]))
def test_weighted_moments_are_those_of_the_repeated_values(pairs, ddof):
    value = f64([v if ok else NAN for v, _, ok in pairs])
    weight, counted = torch.tensor([w for _, w, _ in pairs], dtype=torch.int64), torch.tensor([ok for *_, ok in pairs], dtype=torch.bool)
    mean, variance = weighted_moments(value, weight, counted, ddof=ddof)
    repeated = [float(v) for v, w, ok in pairs if ok for _ in range(w)]
    assert float(mean) == pytest.approx(statistics.fmean(repeated) if repeated else 0, abs=1e-12)
    expected = sum((v - float(mean)) ** 2 for v in repeated) / (len(repeated) - ddof) if len(repeated) > ddof else 0
    assert float(variance) == pytest.approx(expected, abs=1e-12)


@given(rows=st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 2), st.booleans()), max_size=12))
def test_median_is_the_lower_one_of_the_counted_members(rows):
    out = median(
        f64([v if ok else NAN for v, _, ok in rows]),
        torch.tensor([g for _, g, _ in rows], dtype=torch.int64),
        torch.tensor([ok for *_, ok in rows], dtype=torch.bool),
    )
    for place, (_, group, _) in enumerate(rows):
        members = [v for v, g, ok in rows if ok and g == group]
        assert out[place] == (statistics.median_low(members) if members else 0)
