"""algo.advantage.a_grae against the closed form of arXiv:2602.05548."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.zoo.advantage.a_grae import a_grae

EXACT = {"epsilon": 0.0, "ddof": 0}


def binary(*right, of=8):
    """One group per number of right answers."""
    return inputs([(float(i < n), g, True) for g, n in enumerate(right) for i in range(of)])


def test_a_grae_by_hand():
    # p = 1/4 and omega = 1/4: factor (1/8) / (1/2) + (3/8) / sqrt(3/4) = 0.25 + 0.4330127
    x = inputs([(1.0, 0, True), (0.0, 0, True), (0.0, 0, True), (0.0, 0, True)])
    factor = 0.25 + 0.4330127
    wrong = -0.5773503 * factor
    right = 1.7320508 * factor * 0.25
    assert a_grae(x, **EXACT).tolist() == pytest.approx([right, wrong, wrong, wrong], abs=1e-6)


@given(right=st.lists(st.integers(0, 8), min_size=1, max_size=5))
def test_group_sums_before_damping_match_the_closed_form(right):
    omega = sum(right) / 8 / len(right)
    out = a_grae(binary(*right), alpha=1e-9, **EXACT).view(len(right), 8)
    for g, n in enumerate(right):
        p = n / 8
        expected = 8 * (omega * math.sqrt(1 - p) + (1 - omega) * math.sqrt(p)) if 0 < p < 1 else 0.0
        assert float(out[g].abs().sum()) == pytest.approx(expected, abs=1e-9)


def test_every_group_counts_once_in_omega():
    # p = 1/2 of eight and 0 of two: omega is 1/4, not 4/10; factor (1/8 + 3/8) / sqrt(1/2)
    x = inputs([(float(i < 4), 0, True) for i in range(8)] + [(0.0, 1, True)] * 2)
    assert a_grae(x, alpha=1e-9, **EXACT)[:8].tolist() == pytest.approx([math.sqrt(0.5)] * 4 + [-math.sqrt(0.5)] * 4)
    assert a_grae(x, alpha=1.0, **EXACT)[0].item() == pytest.approx(math.sqrt(0.5) / 4)


def test_small_omega_prefers_easy_prompts_and_large_omega_hard_ones():
    easy_first = a_grae(binary(1, 7, 0, 0, 0, 0, 0, 0), alpha=1e-9, **EXACT).view(8, 8).abs().sum(1)
    assert easy_first[1] > easy_first[0]
    hard_later = a_grae(binary(1, 7, 8, 8, 8, 8, 8, 8), alpha=1e-9, **EXACT).view(8, 8).abs().sum(1)
    assert hard_later[0] > hard_later[1]


def test_alpha_damps_the_positive_side_only():
    x = binary(2, 2)
    free, damped, half = (a_grae(x, alpha=alpha, **EXACT) for alpha in (0.25, 1.0, 0.5))
    up = free > 0
    torch.testing.assert_close(damped[up], free[up] * 0.25)
    torch.testing.assert_close(half[up], free[up] * 0.5)
    torch.testing.assert_close(damped[~up], free[~up])


@given(rewards=st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_keeps_the_sign_of_the_group_relative_advantage(rewards):
    x = inputs([(r, 0, True) for r in rewards])
    out, plain = a_grae(x), grpo(x)
    assert out.isfinite().all()
    # a tiny advantage times a small factor may round to zero, but never turns round
    assert bool((out * plain >= 0).all())
    assert torch.equal(out.abs() > 1e-12, plain.abs() > 1e-12) or float(x.reward_N.mean()) < 1e-9


def test_a_column_says_what_is_hard_and_the_sum_what_is_good():
    x = inputs([(1.2, 0, True), (0.2, 0, True), (0.0, 0, True), (0.0, 0, True)])
    x = dataclasses.replace(x, rewards_NK=torch.tensor([[1.0, 0.2], [0.0, 0.2], [0.0, 0.0], [0.0, 0.0]]).double(), columns=("acc", "fmt"))
    out = a_grae(x, reward="acc", alpha=0.25, **EXACT)
    torch.testing.assert_close(out, grpo(x, **EXACT) * (0.25 + 0.4330127), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="no reward column 'iou'"):
        a_grae(x, reward="iou")


def test_a_group_that_is_all_right_in_the_column_stays_finite():
    x = inputs([(1.2, 0, True), (1.0, 0, True), (0.0, 1, True), (0.2, 1, True)])
    x = dataclasses.replace(x, rewards_NK=torch.tensor([[1.0], [1.0], [0.0], [0.0]]).double(), columns=("acc",))
    # p is kept within [1/2, 1/2] for two rollouts: factor (1/4 + 1/4) / sqrt(1/2) = 0.7071 for both; positives halved
    assert a_grae(x, reward="acc", **EXACT).tolist() == pytest.approx([0.353553, -0.707107, -0.707107, 0.353553], abs=1e-6)


def test_scale_none_is_the_centred_reward():
    x = binary(4)
    out = a_grae(x, scale="none", alpha=0.5)
    # p = omega = 1/2: the factor is 1 / sqrt(2)
    assert out.tolist() == pytest.approx([0.5 * math.sqrt(0.5) * s for s in [1] * 4 + [-1] * 4])


def test_alpha_must_be_positive():
    with pytest.raises(ValueError, match="alpha is 0"):
        a_grae(binary(1), alpha=0.0)
