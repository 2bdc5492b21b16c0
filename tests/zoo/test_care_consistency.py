"""algo.reward_shaping.care_consistency: who earns the bonus of arXiv:2506.16141."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.reward_shaping.care_consistency import care_consistency

NAN = float("nan")


def shaped(rows, groups=None, **arguments):
    """Rows are (accuracy, likelihood)."""
    x = inputs([(a, g, a == a) for (a, _), g in zip(rows, groups or [0] * len(rows), strict=True)])
    x = dataclasses.replace(x, consistency_N=torch.tensor([c for _, c in rows], dtype=torch.float64))
    return care_consistency(x.rewards_NK, x.valid_N, x, reward="task", **arguments)[:, 0].tolist()


def test_care_consistency():
    # S: the three right ones, mean likelihood 0.6; 0.595 is within the margin, 0.3 is not; the wrong one is out whatever its likelihood
    assert shaped([(1, 0.905), (1, 0.595), (1, 0.3), (0, 0.99)]) == [1.5, 1.5, 1.0, 0.0]
    assert shaped([(1, 0.905), (1, 0.595), (1, 0.3), (0, 0.99)], margin=0.0, coefficient=0.2) == [1.2, 1.0, 1.0, 0.0]


def test_certainty_is_clamped():
    # 0.95 and 0.93: mean 0.94, both within 0.01; without the clamp 0.93 would be below 0.965 - 0.01
    assert shaped([(1, 1.0), (1, 0.93)]) == [1.5, 1.5]
    assert shaped([(1, 1.0), (1, 0.93)], clamp=1.0) == [1.5, 1.0]


def test_the_bonus_is_in_proportion_and_only_from_the_mean_on():
    # mean accuracy 0.5: 0.4 is not in S; equal likelihoods: everybody in S gets it
    assert shaped([(0.8, 0.5), (0.6, 0.5), (0.4, 0.5), (0.2, 0.5)]) == pytest.approx([1.2, 0.9, 0.4, 0.2])


def test_no_answer_no_bonus_and_nobody_right_no_bonus():
    assert shaped([(1, NAN), (1, 0.2)]) == [1.0, 1.5]
    assert shaped([(0.05, 0.9), (0.1, 0.9)]) == [0.05, 0.1]
    assert str(shaped([(NAN, 0.9)])) == "[nan]"


def test_groups_do_not_see_each_other():
    assert shaped([(1, 0.9), (1, 0.2), (1, 0.2), (0, 0.9)], groups=[0, 0, 5, 5]) == [1.5, 1.0, 1.5, 0.0]


@given(accuracy=st.sampled_from([0.1 + 0.2, 0.7, 1.0]), c=st.floats(0, 1), n=st.integers(1, 9))
def test_equal_rollouts_all_earn_it(accuracy, c, n):
    assert shaped([(accuracy, c)] * n, margin=0.0) == pytest.approx([1.5 * accuracy] * n)


@given(
    rows=st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=1, max_size=8),
    raised=st.floats(0, 1),
    data=st.data(),
)
def test_a_wrong_rollout_never_earns_it_and_a_higher_likelihood_never_costs_it(rows, raised, data):
    out = shaped(rows)
    assert all(value == 0 for (a, _), value in zip(rows, out, strict=True) if a == 0)
    i = data.draw(st.integers(0, len(rows) - 1))
    changed = [(a, max(c, raised) if k == i else c) for k, (a, c) in enumerate(rows)]
    assert shaped(changed)[i] >= out[i]


def test_what_is_missing_or_wrong_is_said():
    x = inputs([(1.0, 0, True)])
    with pytest.raises(ValueError, match="'care_consistency' needs consistency_N"):
        care_consistency(x.rewards_NK, x.valid_N, x, reward="task")
    with pytest.raises(ValueError, match="must not be negative"):
        shaped([(1, 1)], margin=-0.1)
