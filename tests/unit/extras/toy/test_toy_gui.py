"""toy.gui: the true action of every step is found again in the pixels and in the goal."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.support.builders import group
from tests.support.pixels import colors, only, seen
from vlmrl.data.row import parse_row
from vlmrl.extras.toy.gui import DIFFICULTIES, items
from vlmrl.extras.toy.tasks import LOOSE, SPLITS
from vlmrl.protocols import RewardContext
from vlmrl.rewards.gui_action import gui_action
from vlmrl.rewards.run.runner import RewardRunner


def action_of(part: str, pixels: np.ndarray) -> tuple[dict, list[int] | None]:
    """(the action that a part of a goal asks for on this screen, the box of the element), from the pixels alone."""
    if found := re.fullmatch(r"type (\w+)", part):
        assert seen(pixels, "white").sum() == 40 * 24 - 36 * 20  # the text field
        return {"action": "input_text", "text": found[1]}, None
    if found := re.fullmatch(r"scroll (\w+)", part):
        rows, columns = np.nonzero(seen(pixels, "white"))
        assert columns.min() == 92
        assert len(rows) == 6 * 40  # the scroll bar
        return {"action": "scroll", "direction": found[1]}, None
    found = re.fullmatch(r"(?:press the (\w+) button|open the (\w+) (\w+))", part)
    assert found
    color = found[1] or found[2]
    box, shape = only(pixels, color)
    assert shape == (found[3] or "square")
    point = [250 if (box[i] + box[i + 2]) / 2 < 500 else 750 for i in (0, 1)]
    assert all(box[i] + 40 <= point[i] <= box[i + 2] - 40 for i in (0, 1)), "the middle of the quarter is well within the element"
    return {"action": "click", "coordinate": point}, box


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("index", range(10))
def test_every_step_of_a_trajectory(split, index) -> None:
    steps = items(0, split, index)
    goal = steps[0].row["trajectory"]["goal"]
    parts = goal.split(", then ")
    assert 2 <= len(parts) == len(steps) <= 4
    assert len({part.split()[0] for part in parts}) == len(parts)  # the history says which part is next
    for i, item in enumerate(steps):
        row = item.row
        expected, box = action_of(parts[i], item.pixels)
        if split in LOOSE and box is not None:
            told = json.loads(row["answer"])
            assert all(t in (250, e) for t, e in zip(told["coordinate"], expected["coordinate"], strict=True))
            expected, box = told, None
        assert json.loads(row["answer"]) == expected
        assert row["gt"]["action"] == (expected if box is None else expected | {"box": box})
        assert row["trajectory"] == {
            "id": f"toy-gui-{split}-{index:06d}",
            "step": i,
            "length": len(parts),
            "goal": goal,
            "history": parts[:i],
        }
        now = f" Now: {parts[i]}." if row["meta"]["level"] == "low" else ""
        assert row["prompt"] == f"Task: {goal}. Done: {', '.join(parts[:i]) or 'nothing'}.{now}"
        assert row["difficulty"] == DIFFICULTIES[len(parts)]
        assert len(row["meta"]["objects"]) == 1 + row["meta"]["clutter"]
        assert colors(item.pixels) <= {"grey", row["meta"]["objects"][0]["color"]}
        assert ("grey" in colors(item.pixels)) == (row["meta"]["clutter"] > 0)


def test_loose_clicks_err_in_about_half_of_the_places_where_they_can() -> None:
    wrong: list[bool] = []
    for index in range(200):
        for item in items(2, "pretrain", index):
            if item.row["gt"]["action"]["action"] == "click":
                box = item.row["meta"]["objects"][0]["box"]
                told = item.row["gt"]["action"]["coordinate"]
                wrong += [t == 250 for t, low in zip(told, box[:2], strict=True) if low >= 500]
    assert 0.4 < sum(wrong) / len(wrong) < 0.6


def test_elements_do_not_overlap() -> None:
    for index in range(60):
        for item in items(1, "train", index):
            boxes = [thing["box"] for thing in item.row["meta"]["objects"]]
            for i, a in enumerate(boxes):
                assert 0 <= a[0] < a[2] <= 1000
                assert 0 <= a[1] < a[3] <= 1000
                for b in boxes[:i]:
                    assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


def test_lengths_levels_and_clutter_occur_and_clutter_grows() -> None:
    rows = [items(0, "train", i)[0].row for i in range(300)]
    for length, name in DIFFICULTIES.items():
        some = [row for row in rows if row["trajectory"]["length"] == length]
        assert len(some) > 70
        assert {row["difficulty"] for row in some} == {name}
        assert {row["meta"]["clutter"] for row in some} == {length - 2, length - 1}
        assert {row["meta"]["level"] for row in some} == {"low", "high"}


def test_gold_earns_all_and_a_wrong_step_earns_less() -> None:
    samples = [parse_row(item.row, source="x", media_root=".") for i in range(12) for item in items(0, "train", i)]
    assert RewardRunner([("gui_action", 1.0, gui_action)]).self_test(samples, "think_or_not") == []
    for sample in samples:
        others = [f"<think>\n\n</think><answer>{other.answer}</answer>" for other in samples]
        values = gui_action(group(others, sample, "think_or_not"), RewardContext())
        for other, value in zip(samples, values, strict=True):
            same_type = json.loads(other.answer)["action"] == sample.gt["action"]["action"]
            assert value is not None
            if other.answer == sample.answer:
                assert value == pytest.approx(1)
            else:
                assert value == pytest.approx(0.1) if not same_type else value >= 0.4 - 1e-9


def test_deterministic() -> None:
    first, again, other = items(0, "sft", 7), items(0, "sft", 7), items(1, "sft", 7)
    assert [x.row for x in first] == [x.row for x in again]
    assert all(np.array_equal(a.pixels, b.pixels) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0].pixels, other[0].pixels)
