"""algo.advantage.batch_std against numbers computed by hand and TRL's formula."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.advantage.batch_std import batch_std

NAN = float("nan")


def rows(*groups):
    return [(float(v), g, v == v) for g, values in enumerate(groups) for v in values]


def test_two_groups():
    out = batch_std(inputs(rows([1, 0, 0, 0], [1, 1, 1, 0])), epsilon=0.0).tolist()
    assert out == pytest.approx([1.4031, *[-0.4677] * 3, *[0.4677] * 3, -1.4031], abs=5e-5)


def test_population_deviation():
    out = batch_std(inputs(rows([1, 0, 0, 0], [1, 1, 1, 0])), epsilon=0.0, ddof=0).tolist()
    assert out == pytest.approx([1.5, *[-0.5] * 3, *[0.5] * 3, -1.5])


@given(groups=st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=4, max_size=4), min_size=1, max_size=4))
def test_equals_the_formula_of_trl_on_groups_of_one_size(groups):
    rewards = torch.tensor(groups, dtype=torch.float64)
    expected = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std() + 1e-4)
    torch.testing.assert_close(batch_std(inputs(rows(*groups))), expected.flatten(), rtol=0, atol=1e-9)


def test_a_nearly_solved_prompt_is_not_amplified():
    out = batch_std(inputs(rows([1] * 7 + [0], [1] * 4 + [0] * 4))).tolist()
    assert out[0] / out[8] == pytest.approx((1 / 8) / (1 / 2))


def test_flat_groups_get_zero_but_count_in_the_deviation():
    out = batch_std(inputs(rows([1, 0], [5, 5], [9], [NAN, NAN])), epsilon=0.0).tolist()
    scale = statistics.stdev([1, 0, 5, 5, 9])
    assert out == pytest.approx([0.5 / scale, -0.5 / scale, 0, 0, 0, 0, 0])
    assert out[2:] == [0.0] * 5
