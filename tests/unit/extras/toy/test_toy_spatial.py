"""toy.spatial: answers and thoughts are measured again in the pixels."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from tests.support.builders import group
from tests.support.pixels import colors, only
from vlmrl.answers.tags import gold_text
from vlmrl.data.row import parse_row
from vlmrl.extras.toy.spatial import items
from vlmrl.extras.toy.tasks import SPLITS
from vlmrl.protocols import RewardContext
from vlmrl.rewards.exact import exact
from vlmrl.rewards.rule_spatial import rule_consistency, rule_grounding
from vlmrl.rewards.run.runner import RewardRunner

CTX = RewardContext()
COLUMNS = [("exact", 1.0, exact), ("rule_consistency", 1.0, rule_consistency), ("rule_grounding", 1.0, rule_grounding)]
QUESTION = re.compile(r"Is the (\w+) (\w+) (left of|right of|above|below) the grey (\w+)\?")


def scores(row: dict) -> list[float | None]:
    """Of the row's own thought and answer, per column."""
    sample = parse_row(row, source="x", media_root=".")
    of = group([gold_text(sample, "think_or_not", sample.thought)], sample, "think_or_not")
    return [function(of, CTX)[0] for _, _, function in COLUMNS]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("index", range(12))
def test_answers_and_boxes_are_what_the_picture_shows(split, index) -> None:
    item = items(0, split, index)[0]
    found = QUESTION.fullmatch(item.row["prompt"])
    assert found
    color, shape, relation, other = found.groups()
    assert colors(item.pixels) == {color, "grey"}
    (first, first_shape), (second, second_shape) = only(item.pixels, color), only(item.pixels, "grey")
    assert (shape, other) == (first_shape, second_shape)
    x1, y1, x2, y2 = first
    a1, b1, a2, b2 = second
    # wholly to the side, not just by the centre
    holds = {"left of": x2 <= a1, "right of": x1 >= a2, "above": y2 <= b1, "below": y1 >= b2}
    opposite = {"left of": x1 >= a2, "right of": x2 <= a1, "above": y1 >= b2, "below": y2 <= b1}
    assert holds[relation] != opposite[relation]
    assert item.row["answer"] == ("yes" if holds[relation] else "no")
    assert item.row["gt"]["objects"] == {f"{color} {shape}": first, f"grey {other}": second}


def test_thoughts_are_sound_outside_of_fine_tuning() -> None:
    for split in SPLITS:
        rows = [items(0, split, i)[0].row for i in range(16)]
        if split != "sft":
            assert {row["meta"]["thought"] for row in rows} == {"sound"}
            assert all(scores(row) == [1, 1, 1] for row in rows)


def test_unfaithful_thoughts_fail_one_rule_each() -> None:
    rows = [items(0, "sft", i)[0].row for i in range(400)]
    kinds = Counter(row["meta"]["thought"] for row in rows)
    assert 0.3 < kinds["box"] / 400 < 0.45  # three in four of a half
    assert 0.12 < kinds["relation"] / 400 < 0.26  # three in four of a quarter
    habits = {(row["gt"]["relation"][1], row["meta"]["thought"]) for row in rows if row["meta"]["thought"] != "sound"}
    assert habits == {("above", "box"), ("below", "box"), ("right of", "relation")}
    assert all(row["meta"]["thought"] == "sound" for row in rows if row["gt"]["relation"][1] == "left of")
    wanted = {"sound": [1, 1, 1], "box": [1, 1, 0.5], "relation": [1, 0, 1]}
    assert all(scores(row) == wanted[row["meta"]["thought"]] for row in rows)


def test_answers_and_relations_are_balanced() -> None:
    rows = [items(5, "train", i)[0].row for i in range(400)]
    assert 0.42 < sum(row["answer"] == "yes" for row in rows) / 400 < 0.58
    assert min(Counter(row["gt"]["relation"][1] for row in rows).values()) > 60


def test_gold_rows_pass_the_audit_of_rewards() -> None:
    samples = [parse_row(items(0, "train", i)[0].row, source="x", media_root=".") for i in range(20)]
    assert RewardRunner(COLUMNS).self_test(samples, "think_or_not") == []


def test_deterministic() -> None:
    first, again, other = items(0, "sft", 7)[0], items(0, "sft", 7)[0], items(1, "sft", 7)[0]
    assert first.row == again.row
    assert np.array_equal(first.pixels, again.pixels)
    assert not np.array_equal(first.pixels, other.pixels)
