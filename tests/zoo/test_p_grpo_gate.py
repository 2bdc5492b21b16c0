"""algo.reward_shaping.p_grpo_gate: r = format + outcome + outcome * thinking (arXiv:2508.05170)."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.reward_shaping.p_grpo_gate import p_grpo_gate

NAN = float("nan")


def shaped(rows, **arguments):
    """Rows are (format, outcome, thinking)."""
    x = inputs([(0.0, 0, True)] * len(rows))
    x = dataclasses.replace(x, rewards_NK=torch.tensor(rows, dtype=torch.float64), columns=("format", "outcome", "thinking"))
    return p_grpo_gate(x.rewards_NK, x.valid_N, x, reward="thinking", **{"outcome": "outcome"} | arguments)


def test_p_grpo_gate():
    out = shaped([(1, 1, 0.8), (1, 0, 0.8), (0, 1, 0.5), (0, 0, 0.9)])
    assert out.sum(dim=1).tolist() == pytest.approx([2.8, 1.0, 1.5, 0.0])


def test_graded_outcomes():
    rows = [(0, 0.9, 0.5), (0, 0.5, 0.5), (0, 0.2, 0.5)]
    assert shaped(rows)[:, 2].tolist() == [0.0] * 3
    assert shaped(rows, tau=0.5)[:, 2].tolist() == [0.5, 0.5, 0.0]
    assert shaped(rows, form="multiply")[:, 2].tolist() == pytest.approx([0.45, 0.25, 0.1])


def test_missing_values_poison_nothing():
    out = shaped([(1, 1, NAN), (1, NAN, 0.8)])
    assert out[0, :2].tolist() == [1.0, 1.0]
    assert out.nansum(dim=1).tolist() == [2.0, 1.0]
    assert shaped([(1, NAN, 0.8)], form="multiply")[0, 2] == 0


@given(a=st.floats(0, 1), b=st.floats(0, 1), form=st.sampled_from(["threshold", "multiply"]))
def test_a_wrong_outcome_has_nothing_to_gain(a, b, form):
    assert torch.equal(shaped([(1, 0, a)], form=form), shaped([(1, 0, b)], form=form))


def test_an_unknown_outcome_column_is_named():
    with pytest.raises(ValueError, match="no reward column 'iou'"):
        shaped([(1, 1, 1)], outcome="iou")
