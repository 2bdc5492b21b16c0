"""algo.advantage.gdpo against numbers computed by hand and TRL's formula."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.gdpo import gdpo
from vlmrl.algo.advantage.grpo import grpo

NAN = float("nan")
FIRST, SECOND = ([1, 1, 0, 0], [1, 0, 1, 0]), ([1, 1, 0, 0], [0, 0, 0, 0])


def of(*groups, weights=None, lengths=None):
    """Groups as tuples of columns."""
    rewards = torch.cat([torch.tensor(columns, dtype=torch.float64).T for columns in groups])
    weight_K = torch.ones(rewards.shape[1], dtype=torch.float64) if weights is None else torch.tensor(weights, dtype=torch.float64)
    ids = [g for g, columns in enumerate(groups) for _ in columns[0]]
    valid = (~rewards.isnan()).any(dim=1).tolist()
    total = (rewards.nan_to_num() * weight_K).sum(dim=1).tolist()
    x = inputs(list(zip(total, ids, valid, strict=True)))
    names = tuple(f"column{k}" for k in range(rewards.shape[1]))
    length_N = x.length_N if lengths is None else torch.tensor(lengths)
    return dataclasses.replace(x, rewards_NK=rewards, columns=names, length_N=length_N, weights_K=None if weights is None else weight_K)


@pytest.mark.parametrize(
    ("post", "expected"),
    [
        ("none", [1.7321, 0, 0, -1.7321, 0.866, 0.866, -0.866, -0.866]),
        ("batch", [1.5275, 0, 0, -1.5275, 0.7638, 0.7638, -0.7638, -0.7638]),
    ],
)
def test_two_groups_of_two_columns(post, expected):
    assert gdpo(of(FIRST, SECOND), post=post, epsilon=0.0).tolist() == pytest.approx(expected, abs=5e-5)


def test_what_summing_first_would_lose():
    """(0, 1) and (0, 2) as summed rewards have the same z-scores; here the second counts twice."""
    one, two = ([0, 1], [0, 0]), ([0, 1], [0, 1])
    assert grpo(of(one, two), epsilon=0.0).tolist() == pytest.approx([-0.7071, 0.7071] * 2, abs=5e-5)
    assert gdpo(of(one, two), post="none", epsilon=0.0).tolist() == pytest.approx([-0.7071, 0.7071, -1.4142, 1.4142], abs=5e-5)


def test_the_scale_of_a_column_does_not_matter():
    scaled = of(([10, 10, 0, 0], FIRST[1]))
    assert gdpo(scaled, post="none", epsilon=0.0).tolist() == pytest.approx([1.7321, 0, 0, -1.7321], abs=5e-5)
    assert grpo(scaled, epsilon=0.0).tolist() == pytest.approx([0.9479, 0.7756, -0.7756, -0.9479], abs=5e-5)


def test_weights():
    assert gdpo(of(FIRST, weights=[2.0, 1.0]), post="none", epsilon=0.0).tolist() == pytest.approx(
        [3 * 0.8660254, 0.8660254, -0.8660254, -3 * 0.8660254]
    )
    assert gdpo(of(FIRST, weights=[0.0, 1.0]), post="none").tolist() == pytest.approx([0.86587, -0.86587, 0.86587, -0.86587], abs=5e-5)
    with pytest.raises(ValueError, match=r"'gdpo': 3 weights for 2 reward columns \(column0, column1\)"):
        gdpo(dataclasses.replace(of(FIRST), weights_K=torch.ones(3)))


@given(
    groups=st.lists(st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 2), min_size=4, max_size=4), min_size=1, max_size=3),
    weights=st.sampled_from([[1.0, 1.0], [0.3, 2.0]]),
)
def test_equals_the_formula_of_trl_on_groups_of_one_size(groups, weights):
    rewards = torch.tensor(groups, dtype=torch.float64)
    z = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)
    total = (z * torch.tensor(weights, dtype=torch.float64)).sum(dim=-1).flatten()
    expected = (total - total.mean()) / (total.std() + 1e-4)
    columns = [tuple(zip(*group, strict=True)) for group in groups]
    torch.testing.assert_close(gdpo(of(*columns, weights=weights)), expected, rtol=0, atol=1e-9)


@given(values=st.lists(st.sampled_from([0.0, 0.1, 0.7, 1.0]), min_size=1, max_size=6))
def test_one_column_without_the_last_step_is_grpo(values):
    x = of((values,))
    torch.testing.assert_close(gdpo(x, post="none"), grpo(x), rtol=0, atol=1e-12)


def test_a_column_that_did_not_judge_adds_nothing_and_moves_nobody():
    out = gdpo(of(([1, 0, 0, 1], [1, 0, NAN, NAN])), post="none", epsilon=0.0).tolist()
    task, short = 0.5 / (1 / 3) ** 0.5, 0.5 / 0.5**0.5
    assert out == pytest.approx([task + short, -task - short, -task, task])


def test_rows_that_nothing_judged_are_zero_and_do_not_count():
    out = gdpo(of(([1, 0, NAN], [1, 0, NAN]), ([0, 1], [0, 0]))).tolist()
    without = gdpo(of(([1, 0], [1, 0]), ([0, 1], [0, 0]))).tolist()
    assert out == pytest.approx([*without[:2], 0, *without[2:]])


def test_groups_without_signal_are_exactly_zero_whatever_the_mean_of_the_batch():
    lengths = [5, 1, 2, 2, 9, 4, 4]
    out = gdpo(of(([1, 0], [1, 0]), ([3, 3], [1, 1]), ([8], [1]), ([1, 0], [0, 1]), lengths=lengths), post="token", epsilon=0.0).tolist()
    assert out[2:] == [0.0] * 5
    # the group of one does not count; the flat one and the one whose columns cancel do
    tokens = torch.tensor([2**0.5] * 5 + [-(2**0.5)] + [0.0] * 12, dtype=torch.float64)
    expected = (torch.tensor([2**0.5, -(2**0.5)], dtype=torch.float64) - tokens.mean()) / tokens.std()
    assert out[:2] == pytest.approx(expected.tolist())
