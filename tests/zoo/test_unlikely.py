"""algo.advantage.unlikely: the example of arXiv:2506.02355's authors' code, worked out by hand."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.zoo.advantage.unlikely import ranks, unlikely


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def with_logp(rewards, logp, lengths=None, off_policy=()):
    x = inputs([(r, 0, r == r) for r in rewards], off_policy=off_policy)
    length = torch.tensor(lengths or [1] * len(rewards), dtype=torch.int64)
    return dataclasses.replace(x, logp_N=f64(logp) * length, length_N=length)


def test_unlikely():
    out = unlikely(with_logp([1, 1, 0, 0], [-0.2, -0.9, -0.5, -0.7]), epsilon=0.0)
    assert out.tolist() == pytest.approx([0.6796, 1.0342, -0.8569, -0.8569], abs=1e-4)


def test_likelihood_is_per_token():
    a = unlikely(with_logp([1, 1, 0, 0], [-0.2, -0.9, -0.5, -0.7], lengths=[40, 1, 7, 3]))
    torch.testing.assert_close(a, unlikely(with_logp([1, 1, 0, 0], [-0.2, -0.9, -0.5, -0.7])))


def test_ranks_share_ties_and_stay_in_their_group():
    score, group = f64([-1, -3, -1, -2, -9, 5]), torch.tensor([0, 0, 0, 0, 1, 1])
    valid = torch.tensor([True, True, True, True, True, False])
    assert ranks(score, group, valid).tolist() == [2.5, 0.0, 2.5, 1.0, 0.0, 0.0]


def test_a_group_of_right_answers_does_not_flatten_likelihoods():
    assert unlikely(with_logp([1, 1, 1, 1], [-0.2, -0.9, -0.5, -0.7])).tolist() == [0.0] * 4


def test_beta_zero_is_grpo():
    x = with_logp([1, 0.5, 0, 0], [-0.2, -0.9, -0.5, -0.7])
    torch.testing.assert_close(unlikely(x, beta=0.0, epsilon=1e-4), grpo(x))


def test_what_was_not_sampled_has_no_rank():
    # the ground truth keeps 1; of the three others the right one is the likeliest: 1 - 0.25 * 2 / 3
    x = with_logp([1, 1, 0, 0], [float("nan"), -0.1, -0.5, -0.7], off_policy=[0])
    expected = grpo(inputs([(1.0, 0, True), (5 / 6, 0, True), (0.0, 0, True), (0.0, 0, True)]), epsilon=1e-6)
    torch.testing.assert_close(unlikely(x), expected)


def test_a_negative_reward_is_not_made_better_by_likelihood():
    out = unlikely(with_logp([-1, -1, 1], [-0.1, -5, -1]))
    assert out[0] == out[1] < out[2]


@given(
    rows=st.lists(st.tuples(st.booleans(), st.floats(-50, 0)), min_size=2, max_size=8),
    beta=st.floats(0, 0.99),
)
def test_right_stays_above_wrong_and_the_less_likely_right_answer_never_gets_less(rows, beta):
    out = unlikely(with_logp([float(r) for r, _ in rows], [p for _, p in rows]), beta=beta).tolist()
    right = sorted((p, a) for (r, p), a in zip(rows, out, strict=True) if r)
    wrong = [a for (r, _), a in zip(rows, out, strict=True) if not r]
    assert all(b[1] <= a[1] + 1e-9 for a, b in itertools.pairwise(right))
    if right and wrong:
        assert min(a for _, a in right) > max(wrong)


def test_what_is_missing_or_wrong_is_said():
    with pytest.raises(ValueError, match="'unlikely' needs logp_N"):
        unlikely(inputs([(1.0, 0, True)]))
    with pytest.raises(ValueError, match="beta is 1"):
        unlikely(with_logp([1], [0]), beta=1.0)
