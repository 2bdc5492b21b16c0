"""Advantage `riskpo`: mixed value-at-risk of bundles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.zoo.advantage.riskpo import mixed_risk, riskpo

SCORES = st.lists(st.floats(0, 5), min_size=2, max_size=9)


def test_riskpo_by_hand():
    # scores 0, 1, 2, 3, 4 with quantiles 0.8 and 3.2: rvar = 0, .2, 1.2, 2.2, 2.4 over 0.6; cvar = -0.8 / 0.2 for the worst
    found = mixed_risk(torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]).double(), low=0.2, high=0.8, omega=0.5, natural=False)
    expected = [0.5 * -4, 0.2 / 0.6, 1.2 / 0.6, 2.2 / 0.6, 2.4 / 0.6]
    assert found.tolist() == pytest.approx([value / 1.5 for value in expected])


def test_riskpo_bundles_questions():
    # papers: (1 + 1, 0 + 1, 0 + 0); both answers of a paper get its advantage
    x = inputs([(1.0, 0, True), (0.0, 0, True), (0.0, 0, True), (1.0, 1, True), (1.0, 1, True), (0.0, 1, True)])
    out = riskpo(x, bundle=2, epsilon=0.0)
    risk = mixed_risk(torch.tensor([2.0, 1.0, 0.0]).double(), low=0.2, high=0.8, omega=0.5, natural=False)
    assert out.tolist() == pytest.approx([*risk.tolist(), *risk.tolist()])
    by_score = riskpo(x, bundle=2, epsilon=0.0, share="score")
    assert by_score.tolist() == pytest.approx([a * b for a, b in zip(out.tolist(), [0.5, 1.5, 1.5, 0.5, 0.5, 1.5], strict=True)])
    by_std = riskpo(x, bundle=2, epsilon=0.0, share="std")
    assert by_std.tolist() == pytest.approx([a / 0.57735 for a in out.tolist()], rel=1e-4)


def test_riskpo_leaves_answers_beyond_the_shortest_question_out():
    x = inputs([(1.0, 0, True), (0.0, 0, True), (0.0, 1, True), (1.0, 1, True), (1.0, 1, True)])
    assert riskpo(x, bundle=2, share="uniform").tolist() == [0.0] * 5  # both papers score 1
    assert riskpo(inputs([(1.0, 0, True), (0.0, 0, True), (1.0, 1, True), (0.0, 1, True), (1.0, 1, True)]), bundle=2)[4] == 0.0


@given(scores=SCORES)
def test_riskpo_does_not_decrease_and_is_flat_above_the_upper_quantile(scores):
    score = torch.tensor(sorted(scores)).double()
    found = mixed_risk(score, low=0.2, high=0.8, omega=1.5, natural=False)
    assert (found.diff() >= -1e-9).all()
    top = found[score >= score.quantile(0.8)]
    assert float(top.max() - top.min()) <= 1e-9
    natural = mixed_risk(score, low=0.2, high=0.8, omega=1.5, natural=True)
    assert (natural <= 1e-9).all()
    assert float(mixed_risk(score, low=0.2, high=0.8, omega=0.0, natural=False).min()) >= -1e-9


def test_riskpo_refuses_its_arguments():
    with pytest.raises(ValueError, match="riskpo"):
        riskpo(inputs([(1.0, 0, True)]), low=0.8, high=0.2)
