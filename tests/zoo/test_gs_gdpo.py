"""algo.advantage.gs_gdpo against normal quantiles of the standard library."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.g2rpo import g2rpo, psi
from vlmrl.zoo.advantage.gs_gdpo import gs_gdpo, psi_within

NAN = float("nan")
QUANTILE = NormalDist().inv_cdf


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def of(*groups, weights=None, tasks=None):
    """Groups as tuples of columns, all of one task."""
    rewards = torch.cat([f64(columns).T for columns in groups])
    ids = [g for g, columns in enumerate(groups) for _ in columns[0]]
    valid = (~rewards.isnan()).any(dim=1).tolist()
    x = inputs(list(zip(rewards.nan_to_num().sum(dim=1).tolist(), ids, valid, strict=True)), tasks=tasks or [0] * len(ids))
    names = tuple(f"column{k}" for k in range(rewards.shape[1]))
    return dataclasses.replace(x, rewards_NK=rewards, columns=names, weights_K=None if weights is None else f64(weights))


def test_psi_within_sees_one_group_at_a_time():
    out = psi_within(f64([1, 5, 0, NAN, 6]), torch.tensor([0, 1, 0, 0, 1]), torch.tensor([True, True, True, False, True]))
    assert out.tolist() == pytest.approx([0.6745, -0.6745, -0.6745, 0, 0.6745], abs=5e-5)


def test_columns_are_ranked_on_their_own_and_summed():
    # Psi of two equal pairs is -+0.7345, so S is 2 * 0.7345, 0, 0, -2 * 0.7345 and the two in the middle tie
    out = gs_gdpo(of(([1, 1, 0, 0], [300, -5, 300, -5])))
    high = QUANTILE(7 / 8)
    assert out.tolist() == pytest.approx([high, 0, 0, -high])


def test_the_sum_decides_where_ranks_of_the_summed_reward_would_not():
    """A column of large rewards does not drown a small one."""
    x = of(([0, 100, 200], [1, 0.5, 0]))
    assert gs_gdpo(x).tolist() == [0.0, 0.0, 0.0]
    assert g2rpo(x).tolist() == pytest.approx([QUANTILE(1 / 6), 0, QUANTILE(5 / 6)], abs=1e-9)
    assert gs_gdpo(of(([0, 100, 200], [1, 0.5, 0]), weights=[1.0, 0.5])).tolist() == pytest.approx(
        [QUANTILE(1 / 6), 0, QUANTILE(5 / 6)], abs=1e-9
    )


def test_the_second_stage_ranks_the_task():
    # S: -+2 * 0.6745 in the first group, -+0.6745 in the second, whose second column is flat; two groups of another task apart
    groups = [([0, 1], [0, 1]), ([0, 1], [1, 1]), ([0, 1], [0, 1])]
    out = gs_gdpo(of(*groups, tasks=[0] * 4 + [1] * 2)).tolist()
    low, mid = QUANTILE(1 / 8), QUANTILE(3 / 8)
    assert out == pytest.approx([low, -low, mid, -mid, QUANTILE(1 / 4), QUANTILE(3 / 4)])


def test_equal_sums_added_in_another_order_tie():
    columns = ([0, 1, 2, 3, 4], [0, 0, 1, 1, 2], [0, 1, 1, 1, 2])
    first, second, third = columns
    out = gs_gdpo(of((first, second, third), (third, first, second), (second, third, first))).tolist()
    assert out[:5] == out[5:10] == out[10:]
    assert len(set(out)) == 5


@given(groups=st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=5), min_size=1, max_size=3))
def test_one_column_is_g2rpo(groups):
    x = of(*[(values,) for values in groups])
    torch.testing.assert_close(gs_gdpo(x), g2rpo(x), rtol=0, atol=1e-12)


@given(values=st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=6))
def test_only_ranks_within_a_column_count(values):
    plain = of(tuple(zip(*values, strict=True)))
    bent = of(tuple(zip(*[(3.0**a, 10 * b + 7) for a, b in values], strict=True)))
    torch.testing.assert_close(gs_gdpo(bent), gs_gdpo(plain), rtol=0, atol=1e-12)


def test_unjudged_entries_are_not_ranked_and_add_nothing():
    out = gs_gdpo(of(([1, 0, NAN, NAN], [NAN, NAN, 1, NAN])))
    # one entry of the second column has nobody to compare with: S is 0.67, -0.67, 0
    assert out.tolist() == pytest.approx([QUANTILE(5 / 6), QUANTILE(1 / 6), 0, 0], abs=1e-9)


def test_groups_without_signal_are_removed_before_the_task_stage():
    with_flat = gs_gdpo(of(([0, 0, 1], [0, 0, 1]), ([1, 1], [2, 2]), ([1, 0], [0, 1]), ([0, 1], [1, 1]))).tolist()
    without = gs_gdpo(of(([0, 0, 1], [0, 0, 1]), ([0, 1], [1, 1]))).tolist()
    assert with_flat[3:7] == [0.0] * 4
    assert with_flat[:3] + with_flat[7:] == without


def test_tie_tol_is_in_units_of_the_rewards():
    x = of(([0.50, 0.505, 0.9, 1.0], [0, 0, 0, 0]))
    torch.testing.assert_close(gs_gdpo(x, tie_tol=0.01), psi(f64([0, 0, 1, 2])))


def test_weights_must_be_one_per_column():
    with pytest.raises(ValueError, match="'gs_gdpo': 1 weights for 2 reward columns"):
        gs_gdpo(of(([0, 1], [0, 1]), weights=[1.0]))
