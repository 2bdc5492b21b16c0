"""algo.group_loss.disco."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.zoo.group_loss.disco import disco

ONE = torch.zeros(3, dtype=torch.int64)
LABELS = torch.tensor([1.0, -0.5, -0.5], dtype=torch.float64)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def run(vector_N, label, group, **arguments):
    """(J summed up as minus the loss, dJ/ds)."""
    leaf = vector_N.clone().requires_grad_()
    loss = disco(leaf, label, group, **{"beta": 0.0, **arguments})
    grad = torch.autograd.grad(loss, leaf)[0] if loss.requires_grad else torch.zeros_like(leaf)
    return -float(loss.detach()), (-grad).tolist()


def test_disco():
    value, weights = run(vector(-0.5, -0.4, -1.0), LABELS, ONE, tau=1.0)
    assert value == pytest.approx(0.15566, abs=1e-5)
    assert weights == pytest.approx([1.0, -0.6457, -0.3543], abs=1e-4)


def test_disco_b():
    value, weights = run(vector(-0.5, -0.4, -1.0), LABELS, ONE, hard_negatives=False)
    assert value == pytest.approx(0.2)
    assert weights == pytest.approx([1.0, -0.5, -0.5])


def test_disco_at_a_large_tau_is_disco_b():
    score = vector(-0.5, -0.4, -1.0)
    assert run(score, LABELS, ONE, tau=1e6)[1] == pytest.approx(run(score, LABELS, ONE, hard_negatives=False)[1], abs=1e-6)


@pytest.mark.parametrize(("score", "tau"), [("logL", 10.0), ("ratio", 1.0)])
def test_the_default_of_tau_goes_by_the_score(score, tau):
    s = vector(-0.5, -0.4, -9.0)
    assert run(s, LABELS, ONE, score=score) == run(s, LABELS, ONE, tau=tau)


def test_questions_without_both_labels_add_nothing_but_count():
    score, label = vector(-0.5, -0.4, -1.0, -3.0, -7.0, -2.0), vector(1, -0.5, -0.5, 1, 1, 0)
    value, weights = run(score, label, torch.tensor([4, 4, 4, 9, 9, 1]), tau=1.0)
    assert value == pytest.approx(0.15566 / 3, abs=1e-5)
    assert weights == pytest.approx([1 / 3, -0.6457 / 3, -0.3543 / 3, 0, 0, 0], abs=1e-4)


def test_unjudged_rows_and_rows_without_tokens_are_left_out():
    score, label = vector(-0.5, -0.4, -1.0, float("nan"), 5.0), vector(1, -0.5, -0.5, 0, -0.5)
    group = torch.zeros(5, dtype=torch.int64)
    loss = disco(score, label, group, None, torch.tensor([3, 3, 3, 3, 0]), tau=1.0, beta=0.0)
    assert float(loss) == pytest.approx(-0.15566, abs=1e-5)


@given(right=st.integers(1, 7))
def test_the_positive_weight_of_a_question_is_1_whatever_its_pass_rate(right):
    label = torch.tensor([1.0] * right + [-1.0] * (8 - right), dtype=torch.float64)
    _, weights = run(torch.linspace(-2, -0.1, 8, dtype=torch.float64), label, torch.zeros(8, dtype=torch.int64))
    assert sum(weights[:right]) == pytest.approx(1.0)
    assert sum(weights[right:]) == pytest.approx(-1.0)


@given(order=st.permutations(range(7)))
def test_permuting_rollouts_permutes_the_weights(order):
    score, label, group = vector(-1, -2, -0.3, -0.7, -1.4, -0.2, -0.9), vector(1, -1, -1, 1, 1, -1, 0), torch.tensor([2, 2, 2, 5, 5, 5, 5])
    _, weights = run(score, label, group)
    assert run(score[list(order)], label[list(order)], group[list(order)])[1] == pytest.approx([weights[i] for i in order], abs=1e-12)


def test_far_scores_stay_finite():
    value, weights = run(vector(-700.0, -800.0, 0.0), LABELS, ONE, tau=0.5)
    assert value == pytest.approx(-700 + 0.5 * math.log(2))
    assert weights == pytest.approx([1.0, 0.0, -1.0])


def test_the_constraint_is_exactly_zero_below_delta():
    kl, tokens = vector(0.0002, -0.0001, 0.0).requires_grad_(), torch.tensor([1, 2, 1])
    bare = disco(vector(-0.5, -0.4, -1.0), LABELS, ONE, beta=0.0)
    loss = disco(vector(-0.5, -0.4, -1.0), LABELS, ONE, kl, tokens)
    assert float(loss.detach()) == float(bare)
    assert torch.autograd.grad(loss, kl)[0].tolist() == [0.0, 0.0, 0.0]


def test_the_constraint_above_delta_has_the_slope_beta_times_the_excess():
    kl, tokens = vector(0.02, 0.01, 0.01).requires_grad_(), torch.tensor([1, 2, 1])
    loss = disco(vector(-0.5, -0.4, -1.0), LABELS, ONE, kl, tokens, beta=100.0, delta=0.004)
    bare = disco(vector(-0.5, -0.4, -1.0), LABELS, ONE, beta=0.0)
    assert float(loss.detach() - bare) == pytest.approx(50 * 0.006**2)
    assert torch.autograd.grad(loss, kl)[0].tolist() == pytest.approx([100 * 0.006 / 4] * 3)


def test_disco_names_what_is_missing_or_wrong():
    with pytest.raises(ValueError, match="kl_N and tokens_N"):
        disco(vector(-1, -1, -1), LABELS, ONE)
    with pytest.raises(ValueError, match="tau is 0"):
        disco(vector(-1, -1, -1), LABELS, ONE, tau=0.0, beta=0.0)
    empty = vector()
    assert float(disco(empty, empty, torch.zeros(0, dtype=torch.int64), beta=0.0)) == 0.0
