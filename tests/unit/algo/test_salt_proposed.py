"""Reweight `salt_proposed`: shared turns get the mean of their attempts' advantages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.attempts import attempts, shuffled
from tests.support.builders import inputs
from vlmrl.algo.reweight.salt_proposed import salt_proposed

A = [1 / 3, -2 / 3, 1 / 3]
GRAPH = [[(0, 0, 0.0), (1, 0, 1.0)], [(0, 0, 0.0), (1, 1, 0.0)], [(0, 1, 0.0), (2, 0, 1.0)]]
"""The first two attempts begin alike and part at their second turn."""


def of(*given, values=A):
    return attempts(*given), torch.tensor(
        [value for value, attempt in zip(values, given, strict=True) for _ in attempt], dtype=torch.float64
    )


def test_salt_proposed_by_hand():
    out = salt_proposed(*of(*GRAPH), history=0)
    assert out.tolist() == pytest.approx([-1 / 6, 1 / 3, -1 / 6, -2 / 3, 1 / 3, 1 / 3])
    assert salt_proposed(*of([(0, 0, 0.0)], [(0, 0, 0.0)], [(0, 0, 0.0)])).tolist() == pytest.approx([0.0] * 3)


def test_salt_tells_turns_with_another_past_apart():
    ways = [[(0, 0, 0.0), (1, 0, 1.0)], [(2, 0, 0.0), (1, 0, 0.0)]]
    merged, apart = (salt_proposed(*of(*ways, values=[0.5, -0.5]), history=h).tolist() for h in (0, 1))
    assert merged == [0.5, 0.0, -0.5, 0.0]
    assert apart == [0.5, 0.5, -0.5, -0.5]
    longer = [[(1, 0, 0.0)], *ways]
    assert salt_proposed(*of(*longer, values=[0.3, 0.5, -0.5]), history=3)[0] == 0.3, "no past is a past of its own"


def test_salt_leaves_what_is_not_known():
    x, adv = of([(-1, 0, 0.0)], [(-1, 0, 0.0)], [(0, -1, 0.0)], [(0, -1, 0.0)], values=[1.0, 2.0, 3.0, 4.0])
    assert salt_proposed(x, adv).tolist() == [1.0, 2.0, 3.0, 4.0]


@given(
    given=st.lists(
        st.lists(st.tuples(st.integers(-1, 1), st.integers(-1, 1), st.just(0.0)), min_size=1, max_size=4), min_size=1, max_size=5
    ),
    history=st.integers(0, 3),
    data=st.data(),
)
def test_salt_preserves_the_sum_in_any_order(given, history, data):
    x, adv = of(*given, values=[float(i * i) for i in range(len(given))])
    out = salt_proposed(x, adv, history=history)
    assert float(out.sum()) == pytest.approx(float(adv.sum()))
    order = data.draw(st.permutations(range(len(adv))))
    torch.testing.assert_close(salt_proposed(shuffled(x, order), adv[list(order)], history=history), out[list(order)])


def test_salt_says_what_is_wrong():
    with pytest.raises(ValueError, match="history is -1"):
        salt_proposed(*of(*GRAPH), history=-1)
    with pytest.raises(ValueError, match="'salt_proposed' needs trajectory_N"):
        salt_proposed(inputs([(1.0, 0, True)]), torch.zeros(1))
