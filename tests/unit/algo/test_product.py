"""algo.reward_shaping.product: the terms of the multiplicative and the additive combiner, by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.reward_shaping.product import product

NAN = float("nan")
COLUMNS = ("exact", "consistency", "grounding")


def shaped(rows, *pairs):
    x = inputs([(0.0, 0, True)] * len(rows))
    rewards = torch.tensor(rows, dtype=torch.float64)
    for column, factor in pairs or (("exact", "consistency"),):
        x = dataclasses.replace(x, rewards_NK=rewards, columns=COLUMNS)
        rewards = product(rewards, x.valid_N, x, reward=column, factor=factor)
    return rewards


def test_product():
    out = shaped([(1, 1, 0.5), (1, 0, 1), (0, NAN, 1), (0.5, 0.5, 1)])
    assert out[:, 0].tolist() == [1, 0, 0, 0.25]
    assert torch.equal(out[:, 1:].nan_to_num(-1), torch.tensor([[1, 0.5], [0, 1], [-1, 1], [0.5, 1]], dtype=torch.float64))


def test_several_factors_are_several_shapes():
    assert shaped([(0.5, 0.5, 0.5)], ("exact", "consistency"), ("exact", "grounding"))[0, 0] == 0.125


def test_missing_values():
    out = shaped([(1, NAN, 0.5), (NAN, 1, 1)])
    assert out[0, 0] == 1
    assert bool(out[1, 0].isnan())


@given(a=st.floats(0, 1), b=st.floats(0, 1))
def test_never_above_its_least_factor(a, b):
    assert float(shaped([(a, b, 1)])[0, 0]) <= min(a, b) + 1e-12


@pytest.mark.parametrize("pair", [("exact", "iou"), ("iou", "exact")])
def test_an_unknown_column_is_named(pair):
    with pytest.raises(ValueError, match="no reward column 'iou'"):
        shaped([(1, 1, 1)], pair)
