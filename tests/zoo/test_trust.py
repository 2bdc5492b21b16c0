"""algo.reward_shaping.trust: gamma and annealing of arXiv:2505.17018."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.reward_shaping.trust import trust, trust_weight

NAN = float("nan")


def shaped(rows, progress=0.0, groups=None, **arguments):
    """Rows are (outcome, thinking); the thinking column after shaping."""
    x = inputs([(0.0, g, True) for g in groups or [0] * len(rows)])
    x = dataclasses.replace(x, rewards_NK=torch.tensor(rows, dtype=torch.float64), columns=("outcome", "thinking"), progress=progress)
    out = trust(x.rewards_NK, x.valid_N, x, reward="thinking", outcome="outcome", **arguments)
    torch.testing.assert_close(out[:, 0], x.rewards_NK[:, 0], equal_nan=True)
    return out[:, 1].tolist()


def gamma(rows):
    r, q = torch.tensor(rows, dtype=torch.float64).T
    return float(trust_weight(q, r, torch.zeros(len(rows), dtype=torch.int64), torch.ones(len(rows), dtype=torch.bool))[0])


def test_trust():
    # mu_c = 0.5, mu_w = 0.8: gamma = exp(-0.3) = 0.7408
    rows = [(1, 0.4), (1, 0.6), (0, 0.8), (0, 0.8)]
    assert gamma(rows) == pytest.approx(0.7408, abs=1e-4)
    expected = [0.3 * math.exp(-0.3) * q for _, q in rows]
    assert shaped(rows) == pytest.approx(expected)


def test_the_term_fades_with_progress():
    rows = [(1, 1.0), (0, 0.2)]
    assert shaped(rows)[0] == pytest.approx(0.3)
    assert shaped(rows, progress=1.0)[0] == pytest.approx(0.1104, abs=1e-4)
    assert shaped(rows, progress=0.5, decay=3.0)[0] == pytest.approx(0.3 * math.exp(-1.5))
    assert shaped(rows, progress=1.0, decay=0.0)[0] == pytest.approx(0.3)


@pytest.mark.parametrize("rows", [[(1, 0.4), (0.9, 0.6)], [(0, 0.4), (0.1, 0.6)]])
def test_a_unanimous_group_loses_the_term(rows):
    assert shaped(rows) == [0.0, 0.0]


def test_without_right_answers_the_weight_is_not_reduced():
    assert shaped([(0.4, 0.5), (0.2, 0.9)]) == pytest.approx([0.15, 0.27])


def test_a_thought_that_was_not_judged_drops_the_groups_term():
    out = shaped([(1, 0.5), (0, NAN), (1, 0.5), (0, 0.1)], groups=[0, 0, 1, 1])
    assert out[0] == 0.0
    assert math.isnan(out[1])
    assert out[2:] == pytest.approx([0.15, 0.03])


def test_a_rollout_without_outcome_gets_no_term_and_moves_nobody():
    rows = [(1, 0.4), (0, 0.8)]
    out = shaped([*rows, (NAN, 1.0)])
    assert out == pytest.approx([*shaped(rows), 0.0])


@given(scores=st.lists(st.floats(0, 1), min_size=2, max_size=8), data=st.data())
def test_not_judging_wrong_answers_switches_trust_off(scores, data):
    right = data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores)))
    rows = [(float(r), q if r else NAN) for r, q in zip(right, scores, strict=True)]
    if len(set(right)) < 2:
        return
    out = shaped(rows, wrong="zero")
    for (r, q), value in zip(rows, out, strict=True):
        assert value == pytest.approx(0.3 * q) if r else math.isnan(value)


@given(rows=st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=2, max_size=8))
def test_gamma_and_that_no_wrong_answer_overtakes_a_right_one(rows):
    right, wrong = [q for r, q in rows if r], [q for r, q in rows if not r]
    g = gamma(rows)
    assert 0 < g <= 1
    mean = lambda q: sum(q) / len(q) if q else 0.0  # noqa: E731
    expected = 1.0 if not right else math.exp(min(mean(right) - mean(wrong), 0))
    assert g == pytest.approx(expected)
    totals = [(r, r + t) for (r, _), t in zip(rows, shaped(rows, alpha=0.99), strict=True)]
    if right and wrong:
        assert min(t for r, t in totals if r) > max(t for r, t in totals if not r)


def test_impossible_arguments_are_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        shaped([(1, 1)], alpha=-0.1)
    with pytest.raises(ValueError, match="must not be negative"):
        shaped([(1, 1)], decay=-1.0)
