"""Masks of packed rows from those of single rows."""

from __future__ import annotations

import pytest
import torch

from vlmrl.extras.families import masks
from vlmrl.extras.families.masks import PackedGroup


def test_an_answer_sees_the_prompt_and_itself() -> None:
    """Prompt of 2, answers of 2 and 1: the second begins where the first does."""
    row = torch.ones(4, 4, dtype=torch.bool).tril()
    [got] = masks.packed([[row]], [PackedGroup(0, 2, (2, 1))])
    assert got.int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]


def test_a_window_counts_places_of_the_row_not_of_the_packed_one() -> None:
    row = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1)  # a column sees itself and the one before
    [got] = masks.packed([[row]], [PackedGroup(0, 2, (2, 1))])
    assert got[4].tolist() == [False, True, False, False, True], "the second answer's first token stands right behind the prompt"


def test_groups_do_not_see_each_other() -> None:
    rows = [torch.ones(n, n, dtype=torch.bool).tril() for n in (3, 4)]
    [got] = masks.packed([[rows[0]], [rows[1]]], [PackedGroup(0, 2, (1,)), PackedGroup(3, 2, (2,))])
    assert got.shape == (7, 7)
    assert not got[3:, :3].any()
    assert not got[:3, 3:].any()


def test_a_model_that_asks_for_another_number_of_masks_is_refused() -> None:
    with pytest.raises(RuntimeError, match="asked for 0 masks of a packed row and for 1"):
        masks.giving([torch.ones(1, 1, dtype=torch.bool)], lambda: None)
    layer = torch.nn.Identity()
    for run in (lambda: None, lambda: layer(torch.zeros(1))):
        with pytest.raises(RuntimeError, match="makes no mask"):
            masks.own_masks(run, layer)
