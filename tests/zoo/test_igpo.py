"""algo.advantage.igpo."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.builders import inputs
from vlmrl.zoo.advantage.igpo import igpo


def turns(rows, **more):
    """Rows are (reward, trajectory, turn, belief)."""
    x = inputs([(r, 0, True) for r, *_ in rows])
    columns = [torch.tensor([row[k] for row in rows]) for k in (1, 2, 3)]
    return dataclasses.replace(x, trajectory_N=columns[0], turn_N=columns[1], belief_N=columns[2].double(), **more)


def test_igpo_by_hand():
    # beliefs 0.1, 0.3, 0.25 before three turns that end with 1: gains 0.2 and -0.05, then the outcome: returns 1.15, 0.95, 1
    # beliefs 0.1, 0.1 before two turns that end with 0: returns 0, 0
    rows = [(0.0, 0, 0, 0.1), (0.0, 0, 1, 0.3), (1.0, 0, 2, 0.25), (0.0, 1, 0, 0.1), (0.0, 1, 1, 0.1)]
    assert igpo(turns(rows)).tolist() == pytest.approx([0.575, 0.475, 0.0, -0.575, -0.475])
    # gamma 0.5: 0.2 + 0.5 (-0.05 + 0.5) = 0.425, then 0.45
    assert igpo(turns(rows), gamma=0.5).tolist() == pytest.approx([0.2125, 0.225, 0.0, -0.2125, -0.225])


def test_igpo_does_not_depend_on_the_order_of_rows():
    rows = [(0.0, 0, 0, 0.1), (1.0, 0, 1, 0.3), (0.0, 1, 0, 0.1), (0.0, 1, 1, 0.1)]
    order = [3, 0, 2, 1]
    assert igpo(turns([rows[n] for n in order])).tolist() == pytest.approx([igpo(turns(rows)).tolist()[n] for n in order])


def test_igpo_leaves_out_attempts_that_are_not_whole():
    rows = [(0.0, 0, 0, 0.1), (1.0, 0, 1, 0.3), (0.0, 1, 0, 0.1), (0.0, 1, 1, 0.1)]
    x = turns(rows, valid_N=torch.tensor([True, True, True, False]))
    assert igpo(x).tolist() == [0.0] * 4, "nobody is left to compare with"


def test_igpo_needs_a_right_answer_and_gamma():
    with pytest.raises(ValueError, match="final_answer"):
        igpo(turns([(0.0, 0, 0, float("nan"))]))
    with pytest.raises(ValueError, match="gamma"):
        igpo(turns([(0.0, 0, 0, 0.1)]), gamma=1.5)
