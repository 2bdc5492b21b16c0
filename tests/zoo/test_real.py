"""algo.group_loss.real."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.zoo.group_loss.real import real


def weights(score, label, group=None, **arguments):
    leaf = torch.tensor(score, dtype=torch.float64, requires_grad=True)
    of = torch.zeros(len(score), dtype=torch.int64) if group is None else torch.tensor(group)
    value = real(leaf, torch.tensor(label).double(), of, **arguments)
    (grad,) = torch.autograd.grad(value, leaf)
    return float(value.detach()), (-grad).tolist()


def test_real_by_hand():
    value, found = weights([0.0] * 4, [1.0, -1.0, -1.0, -1.0])
    assert found == pytest.approx([0.5, -0.25, -0.25, -0.25])
    assert value == pytest.approx(torch.log(torch.tensor(4.0)).item() + torch.log(torch.tensor(2.0)).item(), abs=1e-6)
    # softplus'(0) = 1/2, over four answers
    assert weights([0.0] * 4, [1.0, -1.0, -1.0, -1.0], form="bce")[1] == pytest.approx([0.125, -0.125, -0.125, -0.125])


@given(st.lists(st.tuples(st.floats(-50, 50), st.booleans()), min_size=1, max_size=8), st.sampled_from([0.5, 1.0, 2.0]))
def test_real_weights_are_bounded(rows, tau):
    value, found = weights([s for s, _ in rows], [1.0 if right else -1.0 for _, right in rows], tau=tau)
    assert value >= 0
    for (_, right), weight in zip(rows, found, strict=True):
        assert 0 <= (weight if right else -weight) <= 1 / tau + 1e-9


def test_real_gives_a_likely_right_answer_less():
    found = weights([2.0, 0.0, 2.0, 0.0], [1.0, 1.0, -1.0, -1.0])[1]
    assert found[0] < found[1]
    assert found[2] < found[3] < 0


def test_real_averages_over_labelled_questions():
    alone = weights([0.0, 0.0], [1.0, -1.0])[0]
    assert weights([0.0, 0.0, 3.0, 3.0], [1.0, -1.0, 0.0, 0.0], group=[0, 0, 1, 1])[0] == pytest.approx(alone)
    with pytest.raises(ValueError, match="tau"):
        weights([0.0], [1.0], tau=0.0)
