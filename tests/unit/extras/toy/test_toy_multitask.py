"""toy.multitask: every answer is measured again in the pixels."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from tests.support.builders import group
from tests.support.pixels import only, parts, seen
from vlmrl.answers.tags import gold_text
from vlmrl.data.row import parse_row
from vlmrl.extras.toy.multitask import MOST, TASKS, items
from vlmrl.extras.toy.tasks import LOOSE, SPLITS, Split
from vlmrl.protocols import RewardContext
from vlmrl.rewards.boxes import box_iou
from vlmrl.rewards.number import count, inverse_error, number
from vlmrl.rewards.run.runner import JUNK, RewardRunner


def loose(item) -> bool:
    return item.row["id"].split("-")[2] in LOOSE


SOME = [items(0, split, i)[0] for split in SPLITS for i in range(36)]
COLUMNS = [("count", 1.0, count), ("box_iou", 1.0, box_iou), ("inverse_error", 1.0, inverse_error), ("number", 1.0, number)]


@pytest.mark.parametrize("item", [x for x in SOME if x.row["task"] == "toy_counting"], ids=lambda x: x.row["id"])
def test_counts_are_the_connected_areas_of_the_asked_colour(item) -> None:
    color, told = item.row["prompt"].split()[2], item.row["gt"]["count"]
    shown = len(parts(item.pixels, color))
    assert told == int(item.row["answer"])
    assert told - shown in ((0, 1) if loose(item) and shown < MOST else (0,))
    assert len(parts(item.pixels, "grey")) == len(item.row["meta"]["objects"]) - shown


@pytest.mark.parametrize("item", [x for x in SOME if x.row["task"] == "toy_boxes"], ids=lambda x: x.row["id"])
def test_boxes_bound_the_asked_shape(item) -> None:
    color, shape = item.row["prompt"].removeprefix("Where is the ").removesuffix("?").split()
    box, found = only(item.pixels, color)
    assert found == shape
    (told,) = item.row["gt"]["boxes"]
    assert told[:2] == box[:2]
    assert all(told[i] - box[i] in ((0, 250) if loose(item) else (0,)) for i in (2, 3))
    assert max(told) <= 1000
    assert json.loads(item.row["answer"]) == item.row["gt"]
    assert all(value % 250 == 0 for value in box)


@pytest.mark.parametrize("item", [x for x in SOME if x.row["task"] == "toy_bars"], ids=lambda x: x.row["id"])
def test_bars_are_filled_as_stated(item) -> None:
    color = item.row["prompt"].removesuffix("?").split()[-1]
    filled, rest = int(seen(item.pixels, color).sum()), int(seen(item.pixels, "grey").sum())
    shown = 100 * filled / (filled + rest)
    assert item.row["gt"]["number"] == int(item.row["answer"]) < 100
    assert item.row["gt"]["number"] - shown in ((0, 10) if loose(item) else (0,))


def test_tasks_take_turns_and_values_are_spread() -> None:
    rows = [items(3, "train", i)[0].row for i in range(600)]
    assert [row["task"] for row in rows[:3]] == list(TASKS)
    counts = Counter(row["gt"]["count"] for row in rows if row["task"] == "toy_counting")
    assert set(counts) == set(range(1, MOST + 1))
    assert max(counts.values()) < 75
    assert {row["gt"]["number"] for row in rows if row["task"] == "toy_bars"} == set(range(10, 100, 10))


def test_loose_labels_err_in_about_half_of_the_rows_where_they_can() -> None:
    made = [items(1, "pretrain", i)[0] for i in range(900)]
    wrong = 0
    able = 0
    for item in made:
        if item.row["task"] == "toy_counting":
            shown = len(parts(item.pixels, item.row["prompt"].split()[2]))
            able += shown < MOST
            wrong += item.row["gt"]["count"] != shown
    assert 0.4 < wrong / able < 0.6


@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_valid_and_each_is_judged_by_its_own_columns(split: Split) -> None:
    wanted = {"toy_counting": {"count"}, "toy_boxes": {"box_iou"}, "toy_bars": {"inverse_error", "number"}}
    samples = [parse_row(items(0, split, i)[0].row, source="x", media_root=".") for i in range(9)]
    assert RewardRunner(COLUMNS).self_test(samples, "think_or_not") == []
    for sample in samples:
        for name, _, function in COLUMNS:
            gold, *junk = function(group([gold_text(sample, "think_or_not", None), *JUNK], sample, "think_or_not"), RewardContext())
            assert gold == (1.0 if name in wanted[sample.task] else None)
            assert junk == [0.0 if name in wanted[sample.task] else None] * len(JUNK)


def test_deterministic_and_dependent_on_every_coordinate() -> None:
    first, again = items(0, "train", 7)[0], items(0, "train", 7)[0]
    assert first.row == again.row
    assert np.array_equal(first.pixels, again.pixels)
    for other in (items(1, "train", 7)[0], items(0, "test", 7)[0], items(0, "train", 10)[0]):
        assert not np.array_equal(first.pixels, other.pixels)
    assert len({item.row["id"] for item in SOME}) == len(SOME)
