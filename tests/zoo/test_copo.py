"""Advantage `copo`: the group where answers disagree, the batch where they agree."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.algo.advantage.grpo import grpo
from vlmrl.zoo.advantage.copo import copo


def of(rows):
    """(reward, group, answer)."""
    return dataclasses.replace(inputs([(r, g, True) for r, g, _ in rows]), answer_N=torch.tensor([a for _, _, a in rows]))


def test_copo_by_hand():
    # group 0: answers 3 + 1, H = 0.8113 bits, w = 0.998; group 1 is unanimous and right, w = 4.5e-5
    x = of([(1.0, 0, 0), (1.0, 0, 0), (1.0, 0, 0), (0.0, 0, 1), *[(1.0, 1, 0)] * 4])
    out = copo(x, epsilon=0.0).tolist()
    # P = 0.75 * (1 - 0.375 * 0.8113) = 0.5218 and 1: global advantages -0.7071 and 0.7071
    w = 0.99803
    assert out[0] == pytest.approx(w * 0.5 + (1 - w) * -0.7071, abs=1e-4)
    assert out[3] == pytest.approx(w * -1.5 + (1 - w) * -0.7071, abs=1e-4)
    assert out[4:] == pytest.approx([0.7071] * 4, abs=1e-4)


def test_copo_pushes_unanimous_groups_by_their_prompt():
    out = copo(of([*[(1.0, 0, 0)] * 4, *[(0.0, 1, 0)] * 4]))
    assert (out[:4] > 0).all()
    assert (out[4:] < 0).all()


def test_copo_of_one_prompt_is_the_local_part():
    x = of([(1.0, 0, 0), (0.0, 0, 1)])
    assert copo(x, b=-100.0).tolist() == pytest.approx(grpo(x).tolist())
    assert copo(x, b=100.0).tolist() == pytest.approx([0.0, 0.0])
