"""algo.advantage.tempsamp_anchor: eq. 3 of arXiv:2509.18056."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.algo.advantage.tempsamp_anchor import tempsamp_anchor


def test_tempsamp_anchor():
    # .6, .7, .5 sampled: mean .6, sample deviation .1; the true answer is worth 1.2 times the best
    out = tempsamp_anchor(inputs([(0.6, 0, True), (0.7, 0, True), (0.5, 0, True), (1.0, 0, True)], off_policy=[3]), epsilon=0.0)
    assert out.tolist() == pytest.approx([0.0, 1.0, -1.0, 1.2])


def test_two_groups_have_anchors_of_their_own():
    rows = [(0.0, 0, True), (1.0, 0, True), (1.0, 0, True), (0.0, 1, True), (0.0, 1, True), (1.0, 1, True), (1.0, 1, True)]
    out = tempsamp_anchor(inputs(rows, off_policy=[2, 6]), epsilon=0.0)
    assert out[2].item() == pytest.approx(1.2 / math.sqrt(2))
    # 0, 0, 1: mean 1/3, sample deviation 1 / sqrt(3)
    assert out[6].item() == pytest.approx(1.2 * (2 / 3) * math.sqrt(3))


@pytest.mark.parametrize(("floor", "expected"), [(0.0, 0.0), (0.5, 0.5)])
def test_equal_sampled_rows_leave_no_anchor_but_the_floor(floor, expected):
    out = tempsamp_anchor(inputs([(0.0, 0, True), (0.0, 0, True), (1.0, 0, True)], off_policy=[2]), floor=floor)
    assert out.tolist() == [0.0, 0.0, expected]


def test_unjudged_rows_get_nothing_and_a_lone_true_answer_neither():
    out = tempsamp_anchor(inputs([(0.0, 0, True), (1.0, 0, True), (1.0, 0, False), (1.0, 1, True)], off_policy=[2, 3]), floor=0.5)
    assert out[2:].tolist() == [0.0, 0.0]


@given(rewards=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=8), truth=st.floats(0, 1))
def test_sampled_rows_are_as_without_the_true_answer(rewards, truth):
    rows = [(r, 0, True) for r in rewards]
    plain = grpo(inputs(rows))
    assert tempsamp_anchor(inputs(rows)).tolist() == plain.tolist()
    out = tempsamp_anchor(inputs([*rows, (truth, 0, True)], off_policy=[len(rows)]))
    assert out[:-1].tolist() == plain.tolist()
    assert out[-1].item() == pytest.approx(1.2 * float(plain.max()))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("bad", [{"scale": -1.0}, {"floor": -0.1}])
def test_arguments_are_checked(bad):
    with pytest.raises(ValueError, match="must not be negative"):
        tempsamp_anchor(inputs([(0.0, 0, True)]), **bad)
