"""algo.filter.difficulty_band."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import inputs
from vlmrl.algo.filter.difficulty_band import difficulty_band

NAN = float("nan")


def test_difficulty_band():
    # means: group 5 is 1/2, group 2 is 1, group 3 is 1/5, group 7 has nothing judged
    rows = [(1.0, 5, True), (1.0, 2, True), (0.0, 5, True), (1.0, 2, True), (NAN, 7, False)] + [(float(i == 0), 3, True) for i in range(5)]
    keep, reason = difficulty_band(inputs(rows))
    assert keep.tolist() == [True, False, True, False, False] + [True] * 5
    assert reason == "difficulty_band"
    assert difficulty_band(inputs(rows), low=0.21)[0].tolist() == [True, False, True, False, False] + [False] * 5
    assert difficulty_band(inputs(rows), low=0.0, high=1.0)[0].tolist() == [True, True, True, True, False] + [True] * 5


def test_rounding_does_not_push_a_mean_over_the_border():
    rows = [(0.1 + 0.2, 0, True), (0.3, 0, True)]
    assert difficulty_band(inputs(rows), low=0.0, high=0.3)[0].tolist() == [True, True]


def test_strictly_between_the_borders():
    """Means of 1/5, 0.3 computed in another order, and 1/2."""
    rows = [(float(i == 0), 0, True) for i in range(5)] + [(0.1 + 0.2, 1, True), (0.3, 1, True), (0.0, 2, True), (1.0, 2, True)]
    of = {low: difficulty_band(inputs(rows), low=low, high=0.5, strict=True)[0].tolist() for low in (0.2, 0.1, 0.3)}
    assert of == {0.2: [False] * 5 + [True] * 2 + [False] * 2, 0.1: [True] * 7 + [False] * 2, 0.3: [False] * 9}


def test_only_sampled_rows_count():
    rows = [(0.0, 0, True), (0.0, 0, True), (1.0, 0, True)]
    assert difficulty_band(inputs(rows, off_policy=[2]))[0].tolist() == [False] * 3
    assert difficulty_band(inputs(rows))[0].tolist() == [True] * 3


def test_a_column_and_a_pass_mark():
    x = inputs([(5.0, 0, True), (5.0, 0, True), (5.0, 1, True), (5.0, 1, True)])
    accuracy = torch.tensor([[0.6], [0.4], [0.9], [0.8]], dtype=torch.float64)
    x = dataclasses.replace(x, rewards_NK=accuracy, columns=("accuracy",))
    assert difficulty_band(x, reward="accuracy")[0].tolist() == [True, True, False, False]
    assert difficulty_band(x, reward="accuracy", pass_at=0.5)[0].tolist() == [True, True, False, False]
    assert difficulty_band(x, reward="accuracy", pass_at=0.85)[0].tolist() == [False, False, True, True]
    assert not difficulty_band(x)[0].any()
    with pytest.raises(ValueError, match="no reward column 'speed'"):
        difficulty_band(x, reward="speed")
    with pytest.raises(ValueError, match=r"low 0\.9 is above high"):
        difficulty_band(x, low=0.9)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.data())
def test_permuting_rows_permutes_the_choice(rows, data):
    order = data.draw(st.permutations(range(len(rows))))
    keep = difficulty_band(inputs(rows))[0]
    assert difficulty_band(inputs([rows[i] for i in order]))[0].tolist() == keep[list(order)].tolist()
