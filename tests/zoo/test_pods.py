"""algo.filter.pods: max-variance subsets, against enumeration."""

from __future__ import annotations

import statistics
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.filter.pods import pods, widest

NAN = float("nan")


def kept(rewards: list[float], keep: int) -> list[bool]:
    return pods(inputs([(r, 0, True) for r in rewards]), keep=keep)[0].tolist()


def test_pods():
    rewards = [0.0, 0.0, 0.2, 0.5, 1.0, 1.0]
    ordered = [statistics.pvariance(rewards[: 4 - i] + rewards[6 - i :]) for i in range(5)]
    assert ordered == pytest.approx([0.0419, 0.17, 0.25, 0.1719, 0.1169], abs=1e-4)
    assert kept(rewards, 4) == [True, True, False, False, True, True]
    assert pods(inputs([(0.0, 0, True)]))[1] == "pods"


def test_binary_rewards_are_halved_where_possible():
    assert kept([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0], 4) == [True, True, True, True, False, False, False]
    assert kept([0.0, 0.0, 0.0, 1.0, 0.0], 4) == [True, True, True, True, False]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0, -2.0, 4.0]), min_size=3, max_size=8), st.integers(2, 7))
def test_no_subset_has_more_variance(rewards: list[float], keep: int):
    if keep >= len(rewards):
        return
    chosen = [rewards[i] for i in widest(torch.tensor(rewards, dtype=torch.float64), keep).tolist()]
    assert len(chosen) == keep
    most = max(statistics.pvariance(subset) for subset in combinations(rewards, keep))
    assert statistics.pvariance(chosen) == pytest.approx(most, abs=1e-9)


def test_small_groups_stay_and_large_ones_shrink():
    rows = [(float(i), 0, True) for i in range(5)] + [(0.5, 1, True), (NAN, 1, False)] + [(NAN, 0, False)]
    keep = pods(inputs(rows), keep=2)[0].tolist()
    assert keep == [True, False, False, False, True, True, True, False]


def test_ground_truth_rows_stay_and_do_not_count():
    rows = [(9.0, 0, True), (0.0, 0, True), (1.0, 0, True), (0.4, 0, True)]
    assert pods(inputs(rows, off_policy=[0]), keep=2)[0].tolist() == [True, True, True, False]


def test_equal_rewards_keep_the_first_rows():
    assert kept([0.3] * 5, 3) == [True, True, True, False, False]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2), st.booleans()), min_size=1, max_size=12), st.data())
def test_permuting_rows_keeps_the_same_rewards(rows, data):
    order = data.draw(st.permutations(range(len(rows))))

    def rewards(of) -> list[tuple[int, float]]:
        return sorted((g, r) for (r, g, ok), keep in zip(of, pods(inputs(of), keep=2)[0].tolist(), strict=True) if keep and ok)

    assert rewards([rows[i] for i in order]) == rewards(rows)


def test_keep_is_checked():
    with pytest.raises(ValueError, match="keep 1"):
        kept([0.0, 1.0], 1)
