"""algo.group_loss.preference: `dpo`, `mpo_proposed`, `c3po_proposed`, by hand and against the papers' formulas pair by pair."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.algo.group_loss.preference import c3po_proposed, dpo, mpo_proposed

LN2 = math.log(2)


def of(loss, score, adv, group=None, tokens=None, **arguments):
    groups = torch.zeros(len(adv), dtype=torch.int64) if group is None else torch.tensor(group)
    lengths = torch.tensor(tokens or [4] * len(adv))
    scores = torch.as_tensor(score, dtype=torch.float64)
    return loss(scores, torch.tensor(adv).double(), groups, None, lengths, **arguments)


def log_sigmoid(z):
    return -math.log1p(math.exp(-z))


def test_dpo_by_hand():
    assert float(of(dpo, [0.0, 0.0], [1.0, -1.0])) == pytest.approx(LN2), "policy and reference agree"
    # log-ratios 3 and -2, beta 0.1: -log sigmoid(0.5)
    assert float(of(dpo, [3.0, -2.0], [1.0, -1.0])) == pytest.approx(0.4740770, abs=1e-6)
    assert float(of(dpo, [3.0, -2.0], [-1.0, 1.0])) == pytest.approx(0.9740770, abs=1e-6)


def test_dpo_has_its_papers_gradient():
    """beta sigmoid(h- - h+), up on the chosen and down on the rejected one: eq. 7's gradient."""
    score = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    of(dpo, score, [1.0, -1.0]).backward()
    weight = 0.1 / (1 + math.exp(0.5))
    assert score.grad is not None
    assert score.grad.tolist() == pytest.approx([-weight, weight])


def test_dpo_pairs_stay_within_a_question_and_need_an_order():
    assert float(of(dpo, [3.0, -2.0], [1.0, -1.0], group=[0, 1])) == 0.0
    assert float(of(dpo, [3.0, -2.0], [1.0, 1.0])) == 0.0
    assert float(of(dpo, [float("nan"), 3.0, -2.0], [5.0, 1.0, -1.0], tokens=[0, 4, 4])) == pytest.approx(0.4740770, abs=1e-6)
    # graded answers of a group: three of unequal worth make three pairs
    values = [float(of(dpo, [a, b], [1.0, -1.0])) for a, b in ((1.0, 0.5), (1.0, -2.0), (0.5, -2.0))]
    assert float(of(dpo, [1.0, 0.5, -2.0], [1.0, 0.2, -1.2])) == pytest.approx(sum(values) / 3)


def test_mpo_proposed_is_the_papers_start_where_policy_and_reference_agree():
    assert float(of(mpo_proposed, [0.0, 0.0], [1.0, -1.0], quality=0.0, generation=0.0, preference=1.0)) == pytest.approx(LN2)
    assert float(of(mpo_proposed, [0.0, 0.0], [1.0, -1.0], quality=1.0, generation=0.0, preference=0.0)) == pytest.approx(2 * LN2)
    assert float(of(mpo_proposed, [0.0, 0.0], [1.0, -1.0])) == pytest.approx((0.8 + 2 * 0.2) * LN2)


def test_mpo_proposed_by_hand():
    # h 0.3 and -0.2, mean 0.05; the better answer has 5 tokens
    wanted = -0.8 * log_sigmoid(0.5) - 0.2 * (log_sigmoid(0.25) + log_sigmoid(0.25)) - 3.0 / 5
    assert float(of(mpo_proposed, [3.0, -2.0], [1.0, -1.0], tokens=[5, 9])) == pytest.approx(wanted)
    score = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    of(mpo_proposed, score, [1.0, -1.0], tokens=[5, 9], preference=0.0, quality=0.0).backward()
    assert score.grad is not None
    assert score.grad.tolist() == pytest.approx([-1 / 5, 0.0]), "that of the mean log-likelihood of the better one"


@given(st.lists(st.floats(-9, 9), min_size=3, max_size=3), st.floats(0.01, 1.0))
def test_c3po_proposed_is_dpo_and_imitation(score, beta):
    # two answers to one question, and one alone
    pair = float(of(dpo, score[:2], [1.0, -1.0], beta=beta))
    found = float(of(c3po_proposed, score, [1.0, -1.0, 1.0], group=[0, 0, 1], tokens=[4, 4, 8], beta=beta, imitate=0.5))
    assert found == pytest.approx(pair - 0.5 * score[2] / 8)


def test_c3po_proposed_does_not_imitate_what_was_rejected():
    assert float(of(c3po_proposed, [1.0], [-1.0])) == 0.0


@pytest.mark.parametrize(
    ("loss", "wrong"),
    [(dpo, {"beta": 0.0}), (mpo_proposed, {"beta": -1.0}), (mpo_proposed, {"quality": -0.1}), (c3po_proposed, {"imitate": -1.0})],
)
def test_preference_losses_refuse_their_arguments(loss, wrong):
    with pytest.raises(ValueError, match=loss.__name__):
        of(loss, [0.0, 0.0], [1.0, -1.0], **wrong)
    if loss is not dpo:
        with pytest.raises(ValueError, match="tokens_N"):
            loss(torch.zeros(1), torch.zeros(1), torch.zeros(1, dtype=torch.int64))
