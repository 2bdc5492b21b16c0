"""algo.group_loss.dno_proposed."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.zoo.group_loss.dno_proposed import dno_proposed, win_rates


def value(score, adv, group=None, **arguments):
    of = torch.zeros(len(adv), dtype=torch.int64) if group is None else torch.tensor(group)
    return dno_proposed(torch.as_tensor(score, dtype=torch.float64), torch.tensor(adv).double(), of, **arguments)


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def plainly(score, adv, group, eta):
    """Algorithm 1, pair by pair."""
    rows = range(len(adv))
    rivals = {i: [j for j in rows if j != i and group[j] == group[i]] for i in rows}
    rate = {i: sum(1.0 if adv[i] > adv[j] else 0.5 if adv[i] == adv[j] else 0.0 for j in rivals[i]) / max(1, len(rivals[i])) for i in rows}
    out = []
    for i, j in itertools.combinations(rows, 2):
        if group[i] == group[j]:
            gap = eta * (score[i] - score[j])
            wins = sigmoid(rate[i] - rate[j])
            out.append(-wins * math.log(sigmoid(gap)) - (1 - wins) * math.log(sigmoid(-gap)))
    return sum(out) / len(out)


def test_dno_proposed_by_hand():
    # one right of two: win rates 1 and 0, target sigmoid(1) = 0.7310586; both log-ratios 0: ln 2
    assert float(value([0.0, 0.0], [1.0, -1.0])) == pytest.approx(math.log(2))
    # eta 0.1, gap 2: 0.7310586 * 0.5981389 + 0.2689414 * 0.7981389
    assert float(value([2.0, 0.0], [1.0, -1.0])) == pytest.approx(0.6519272, abs=1e-6)
    # three answers, one right: it wins always, the others draw with each other: 1, 1/4, 1/4
    together = ~torch.eye(3, dtype=torch.bool)
    assert win_rates(torch.tensor([1.0, 0.0, 0.0]), together).tolist() == [1.0, 0.25, 0.25]


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(-2, 2), st.integers(0, 1)), min_size=3, max_size=7),
    st.floats(0.05, 2.0),
)
def test_dno_proposed_is_algorithm_1(rows, eta):
    score, adv, group = ([r[k] for r in rows] for k in range(3))
    assert float(value(score, [float(a) for a in adv], group, eta=eta)) == pytest.approx(plainly(score, adv, group, eta))


def test_dno_proposed_is_a_regression_with_its_least_where_the_gap_is_that_of_the_win_rates():
    score = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)  # eta 1: gap 1 = 1 - 0
    value_ = dno_proposed(score, torch.tensor([3.0, -1.0]), torch.tensor([0, 0]), eta=1.0)
    value_.backward()
    assert score.grad is not None
    assert score.grad.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


def test_dno_proposed_pulls_up_the_one_that_wins():
    score = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    dno_proposed(score, torch.tensor([1.0, -0.5, -0.5]), torch.zeros(3, dtype=torch.int64)).backward()
    assert score.grad is not None
    assert score.grad[0] < 0 < score.grad[1]


def test_dno_proposed_leaves_out_close_pairs_dead_rows_and_other_groups():
    assert float(value([2.0, 0.0, 0.0], [1.0, 0.0, 0.0], least=0.5)) == pytest.approx(
        (0.0 + 2 * (sigmoid(0.75) * math.log(1 + math.exp(-0.2)) + sigmoid(-0.75) * math.log(1 + math.exp(0.2)))) / 2
    )
    assert float(value([2.0, 0.0], [1.0, -1.0], group=[0, 1])) == 0.0
    assert float(value([float("nan"), 2.0, 0.0], [0.0, 1.0, -1.0], tokens_N=torch.tensor([0, 3, 3]))) == pytest.approx(0.6519272, abs=1e-6)


@pytest.mark.parametrize("wrong", [{"eta": 0.0}, {"least": 1.5}])
def test_dno_proposed_refuses_its_arguments(wrong):
    with pytest.raises(ValueError, match="dno_proposed"):
        value([0.0], [1.0], **wrong)
