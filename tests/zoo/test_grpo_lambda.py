"""algo.reward_shaping.grpo_lambda: the length term of arXiv:2505.18086 in the groups that are solved best."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.reward_shaping.grpo_lambda import grpo_lambda

NAN = float("nan")


def shaped(rows, off_policy=(), **arguments):
    """Rows are (reward, group, length)."""
    x = inputs([(r, g, r == r) for r, g, _ in rows], off_policy=off_policy)
    x = dataclasses.replace(x, length_N=torch.tensor([n for _, _, n in rows], dtype=torch.int64))
    return grpo_lambda(x.rewards_NK, x.valid_N, x, reward="task", **arguments)[:, 0].tolist()


EXAMPLE = [(1.0, 0, 100), (1.0, 0, 200), (1.0, 0, 300), (0.0, 0, 400)]


def test_grpo_lambda():
    assert shaped(EXAMPLE) == pytest.approx([0.8637, 0.7, 0.5363, 0.0], abs=1e-4)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(1.0, 0, 100), (0.0, 0, 900)], [0.7, 0.0]),  # one right answer: the sigmoid is 1/2
        ([(1.0, 0, 70), (1.0, 0, 70)], [0.7, 0.7]),  # all of one length
        ([(0.0, 0, 100), (0.0, 0, 900)], [0.0, 0.0]),  # none right
    ],
)
def test_statistics_that_do_not_exist(rows, expected):
    assert shaped(rows) == pytest.approx(expected)


def groups(*pass_counts, of=4):
    return [(float(i < n), g, 10 * i + 10) for g, n in enumerate(pass_counts) for i in range(of)]


def acted(pass_counts, **arguments):
    rows = groups(*pass_counts)
    out = shaped(rows, **arguments)
    return [g for g in range(len(pass_counts)) if out[4 * g : 4 * g + 4] != [r for r, _, _ in rows[4 * g : 4 * g + 4]]]


@pytest.mark.parametrize(
    ("counts", "lam", "expected"),
    [
        ([1, 3, 2, 4, 0], 0.2, [3]),
        ([1, 3, 2, 4, 0], 0.21, [1, 3]),
        ([1, 3, 2, 4, 0], 0.01, [3]),
        ([2, 2, 2, 2], 0.5, [0, 1]),
        ([1, 3, 2, 4, 0], 1.0, [0, 1, 2, 3]),
        ([1, 3, 2, 4, 0], 0.0, []),
        ([0, 0, 0], 0.5, []),
    ],
)
def test_which_groups_are_selected(counts, lam, expected):
    assert acted(counts, lam=lam) == expected


def test_rounding_does_not_select_one_group_more():
    assert 0.07 * 100 > 7
    assert len(acted([4] * 100, lam=0.07)) == 7


def test_ground_truth_keeps_its_reward_and_moves_nobody():
    assert shaped([*EXAMPLE, (1.0, 0, 9999)], off_policy=[4]) == pytest.approx([*shaped(EXAMPLE), 1.0])


def test_unjudged_rows_count_in_no_rate():
    rows = [(1.0, 0, 10), (NAN, 0, 10), (1.0, 1, 10), (0.0, 1, 10)]
    out = shaped(rows, lam=0.5)
    assert out[0] == pytest.approx(0.7)
    assert out[1] != out[1]
    assert out[2:] == [1.0, 0.0]


@given(
    rows=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.integers(0, 500)), min_size=1, max_size=14),
    alpha=st.floats(0, 0.99),
    lam=st.floats(0, 1),
    correct_from=st.sampled_from([0.5, 1.0]),
)
def test_right_stays_above_wrong_and_shorter_is_never_worse(rows, alpha, lam, correct_from):
    rows = [(1.0 if r >= correct_from else 0.0, g, n) for r, g, n in rows]
    out = shaped(rows, alpha=alpha, lam=lam, correct_from=correct_from)
    for (r, g, n), value in zip(rows, out, strict=True):
        for (other, group, length), theirs in zip(rows, out, strict=True):
            if g == group and r > other:
                assert value > theirs
            if g == group and r == other == 1.0 and n < length:
                assert value >= theirs


def test_graded_rewards_are_right_from_a_bound_on():
    out = shaped([(0.9, 0, 10), (0.6, 0, 10), (0.4, 0, 10)], correct_from=0.5)
    assert out == pytest.approx([0.63, 0.42, 0.0])
    assert shaped([(0.3, 0, 10), (0.2, 0, 10)], correct_from=0.5) == [0.3, 0.2]


@pytest.mark.parametrize("wrong", [{"alpha": 1.0}, {"lam": 1.5}, {"lam": -0.1}, {"correct_from": 0.0}])
def test_impossible_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match="needs lam in"):
        shaped(EXAMPLE, **wrong)
