"""toy.think: answers and thoughts are measured again in the pixels."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.support.pixels import colors, only, parts
from vlmrl.data.row import parse_row
from vlmrl.extras.toy.tasks import SPLITS, Split
from vlmrl.extras.toy.think import items
from vlmrl.rewards.exact import exact
from vlmrl.rewards.run.runner import RewardRunner


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("index", range(16))
def test_answers_and_thoughts_are_what_the_picture_shows(split: Split, index: int) -> None:
    item = items(0, split, index)[0]
    row, pixels = item.row, item.pixels
    color = next(iter(colors(pixels) - {"grey"}))
    numbers = {name: len(parts(pixels, name)) for name in (color, "grey")}
    if row["task"] == "toy_color":
        assert row["difficulty"] == "easy"
        assert numbers == {color: 1, "grey": 0}
        assert row["answer"] == color
        thought = f"There is one {color} {only(pixels, color)[1]}."
    else:
        assert row["difficulty"] == "hard"
        thought = f"There are {numbers[color]} {color} shapes and {numbers['grey']} grey shapes."
        group = re.fullmatch(r"How many (\w+) shapes are there\?", row["prompt"])
        expected = numbers[group[1]] if group else numbers[color] - numbers["grey"]
        assert (row["task"] == "toy_group") == bool(group)
        assert expected > 0
        assert row["answer"] == str(expected)
        assert row["gt"] == {"count": expected}
    assert row.get("thought") == (None if split == "pretrain" else thought)


def test_both_difficulties_and_all_answers_occur() -> None:
    rows = [items(2, "train", i)[0].row for i in range(400)]
    assert 0.42 < sum(row["difficulty"] == "easy" for row in rows) / 400 < 0.58
    assert {row["task"] for row in rows} == {"toy_color", "toy_difference"}
    assert {row["answer"] for row in rows} == {"red", "green", "blue", "yellow", "1", "2", "3"}
    # how to count is taught before; the way to a difference is not
    assert {items(2, "pretrain", i)[0].row["task"] for i in range(40)} == {"toy_color", "toy_group"}


def test_gold_rows_pass_the_audit_of_rewards() -> None:
    samples = [parse_row(items(0, split, i)[0].row, source="x", media_root=".") for split in SPLITS for i in range(10)]
    assert RewardRunner([("exact", 1.0, exact)]).self_test(samples, "think_or_not") == []
    assert {sample.meta["difficulty"] for sample in samples} == {"easy", "hard"}


def test_deterministic() -> None:
    first, again, other = items(0, "sft", 7)[0], items(0, "sft", 7)[0], items(1, "sft", 7)[0]
    assert first.row == again.row
    assert np.array_equal(first.pixels, again.pixels)
    assert not np.array_equal(first.pixels, other.pixels)
