"""Advantage `opo`: the length-weighted baseline."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.opo import opo


def of(rows):
    """(reward, length) of one group."""
    return dataclasses.replace(inputs([(r, 0, True) for r, _ in rows]), length_N=torch.tensor([n for _, n in rows]))


def test_opo_by_hand():
    # (10 * 1 + 40 * 1) / 100 = 0.5
    x = of([(1.0, 10), (0.0, 20), (0.0, 30), (1.0, 40)])
    assert opo(x).tolist() == pytest.approx([0.5, -0.5, -0.5, 0.5])


@given(st.lists(st.tuples(st.floats(-1, 1), st.integers(1, 50)), min_size=2, max_size=8))
def test_opo_moves_no_tokens_on_the_whole(rows):
    x = of(rows)
    assert float((x.length_N * opo(x)).sum()) == pytest.approx(0.0, abs=1e-9)


def test_opo_of_empty_answers_is_finite():
    assert opo(of([(1.0, 0), (0.0, 0)])).isfinite().all()
