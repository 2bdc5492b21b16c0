"""rewards.points: points in boxes and masks, and clicks by each rule; frames are stated and never guessed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from tests.support.builders import group, sample
from vlmrl.answers.point import pointing_score
from vlmrl.protocols import RewardContext
from vlmrl.rewards.points import click, point_in_box_reward, points_in_mask
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Sample

NO = RewardContext()


def row(gt: dict[str, Any], answer: str = "[150, 150]", answer_type: str = "point", **meta: Any) -> Sample:
    return dataclasses.replace(sample(answer, gt=gt, meta=meta), answer_type=answer_type)


def texts(*answers: str) -> list[str]:
    return [f"<answer>{answer}</answer>" for answer in answers]


BOX = row({"boxes": [[100, 100, 200, 300]]})
POINTS = texts("[150, 150]", "[100, 100]", "[200, 300]", "[99.9, 150]", "[150, 150] [150, 151]", "there")


def test_point_in_box() -> None:
    assert point_in_box_reward(group(POINTS, BOX), NO) == [1, 1, 1, 0, 0, 0]
    assert point_in_box_reward(group(POINTS, BOX), NO, inclusive=False) == [1, 0, 0, 0, 0, 0]
    two = row({"boxes": [[0, 0, 10, 10], [99, 100, 99.95, 300]]})
    assert point_in_box_reward(group(POINTS, two), NO) == [0, 0, 0, 1, 0, 0]
    assert RewardRunner([("point_in_box", 1.0, point_in_box_reward)]).self_test([BOX], "think") == []


def test_point_in_box_of_the_centre_of_a_box() -> None:
    boxes = texts("[100, 100, 200, 200]", "[0, 0, 100, 100]", "[200, 200, 100, 100]", "[150, 150]", "[100, 100, 200, 200] [1, 1, 2, 2]")
    target = row({"boxes": [[100, 100, 200, 300]]}, '{"boxes": [[100, 100, 200, 300]]}', "bbox")
    assert point_in_box_reward(group(boxes, target), NO, answer="box_centre") == [1, 0, 0, 0, 0]
    assert point_in_box_reward(group(boxes, target), NO) == [None] * 5
    assert point_in_box_reward(group(boxes, BOX), NO, answer="box_centre") == [None] * 5
    assert point_in_box_reward(group(POINTS[:1], row({"points": [[1, 1]]})), NO) == [None]


MASK = {"size": [2, 4], "counts": [4, 4]}
"""The right half of a picture of 4 x 2 pixels."""


def test_points_in_mask() -> None:
    of = texts("(750, 500), (250, 500)", "[999, 999]", "[1000, 0]", "[750, -1]", "there", '{"points": [[500, 0], [600, 900]]}')
    target = row({"mask": MASK}, "[750, 500]", frame="norm1000")
    assert points_in_mask(group(of, target), NO) == [0.5, 1, 0, 0, 0, 1]
    assert points_in_mask(group(texts("[6, 3]", "[1, 1]", "[8, 1]"), row({"mask": MASK}, frame="pixel", size=[8, 4])), NO) == [1, 0, 0]
    assert points_in_mask(group(of, BOX), NO) == [None] * 6
    assert RewardRunner([("points_in_mask", 1.0, points_in_mask)]).self_test([target], "think") == []


def test_frames_are_not_guessed() -> None:
    with pytest.raises(ValueError, match=r"row 'row' .*states no meta\.frame"):
        points_in_mask(group(texts("[1, 1]"), row({"mask": MASK})), NO)
    with pytest.raises(ValueError, match=r"row 'row' .*pixels need 'meta\.size'"):
        points_in_mask(group(texts("[1, 1]"), row({"mask": MASK}, frame="pixel")), NO)
    with pytest.raises(ValueError, match=r"meta\.frame is 'norm'"):
        click(group(texts("[1, 1]"), row({"points": [[1, 1]]}, frame="norm")), NO)


def action(x: float, y: float, kind: str = "click") -> str:
    return f'{{"action": "{kind}", "coordinate": [{x}, {y}]}}'


def gold_action(answer: str = action(500, 500), meta: dict[str, Any] | None = None, **gold: Any) -> Sample:
    return row({"action": {"action": "click", **gold}}, answer, "action", **(meta or {}))


AT = gold_action(coordinate=[500, 500])
CLICKS = texts(action(600, 597), action(640, 500), action(640.1, 500), action(500, 500, "long_press"), "[500, 500]", '{"action": "wait"}')


def test_click_near_a_point() -> None:
    assert click(group(CLICKS, AT), NO) == [1, 1, 0, 0, 0, 0]
    assert click(group(CLICKS, AT), NO, same_action=False) == [1, 1, 0, 1, 0, 0]
    assert click(group(CLICKS, AT), NO, radius=0.1) == [0, 0, 0, 0, 0, 0]
    assert RewardRunner([("click", 1.0, click)]).self_test([AT], "think") == []


def test_click_in_a_box() -> None:
    boxed = gold_action(coordinate=[500, 500], box=[490, 490, 700, 510])
    assert click(group(texts(action(700, 510), action(489, 500)), boxed), NO) == [1, 0]
    assert click(group(texts(action(700, 510), action(489, 500)), boxed), NO, rule="soft") == [1, 0]


def test_click_by_published_rules() -> None:
    """On a screen of 1080 x 2400: 0.14 exactly, and a point that the tall screen moves away in pixels."""
    of = group(
        texts(action(640, 500), action(639.8, 500), action(500, 500 + 335 / 2.4)),
        gold_action(coordinate=[500, 500], meta={"size": [1080, 2400]}),
    )
    assert click(of, NO, rule="os_atlas") == [1, 1, 1]
    assert click(of, NO, rule="gui_r1") == [0, 1, 1]
    assert click(of, NO, rule="ui_r1") == [0, 1, 0]
    with pytest.raises(ValueError, match=r"pixels need 'meta\.size'"):
        click(group(CLICKS, AT), NO, rule="ui_r1")


def test_soft_click() -> None:
    got = click(group(texts(action(500, 500), action(550, 500), action(700, 500), action(701, 500)), AT), NO, rule="soft")
    assert got == pytest.approx([1, math.exp(-0.5), math.exp(-8), 0])


def test_click_on_rows_of_points() -> None:
    near = row({"points": [[0, 0], [500, 500]]}, "[500, 500]", frame="norm1000")
    of = texts("[640, 500]", "[641, 500]", "[1, 1]", "[500, 500] [1, 1]", action(500, 500))
    assert click(group(of, near), NO) == [1, 0, 1, 0, 1]  # the last text has one point, too
    pixels = row({"points": [[50, 50]]}, "[50, 50]", frame="pixel", size=[100, 200])
    assert click(group(texts("[64, 50]", "[65, 50]", "[50, 78]", "[50, 79]"), pixels), NO) == [1, 0, 1, 0]
    boxes = row({"boxes": [[0, 0, 10, 10], [90, 90, 99, 99]]}, "[95, 95]", frame="norm1000")
    assert click(group(texts("[95, 95]", "[50, 50]"), boxes), NO) == [1, 0]


def test_rows_that_are_not_about_clicks() -> None:
    scroll = row({"action": {"action": "scroll", "direction": "up"}}, "x", "action")
    for other in (scroll, gold_action(), row({}, "x", "point"), row({"boxes": [[0, 0, 1, 1]]}, "x", "bbox")):
        assert click(group(CLICKS, other), NO) == [None] * 6
    with pytest.raises(ValueError, match=r"gt\.action .* is not an action"):
        click(group(CLICKS, row({"action": {"coordinate": [1, 1]}}, "x", "action")), NO)
    with pytest.raises(ValueError, match="radius"):
        click(group(CLICKS, AT), NO, radius=0)


def test_pointing_score_prefers_the_mask_then_boxes() -> None:
    full = {"mask": MASK, "boxes": [[0, 0, 100, 100]], "points": [[500, 500]]}
    assert pointing_score("[750, 1]", row(full, frame="norm1000")) == 1
    del full["mask"]
    assert [pointing_score(t, row(full)) for t in ("[50, 50]", "[500, 500]", "x")] == [1, 0, 0]
    del full["boxes"]
    assert [pointing_score(t, row(full, frame="norm1000")) for t in ("[600, 597]", "[641, 500]", "x")] == [1, 0, 0]
    with pytest.raises(ValueError, match=r"gt\.points, gt\.boxes or gt\.mask"):
        pointing_score("[1, 1]", row({}))


def test_a_click_into_a_large_box_counts_in_its_middle() -> None:
    large = row({"boxes": [[100, 0, 900, 100]]}, "[500, 50]", frame="norm1000")
    clicks = texts("[500, 50]", "[401, 99]", "[399, 50]", "[850, 50]", "[500, 101]")
    assert click(group(clicks, large), NO) == [1, 1, 1, 1, 0]
    assert click(group(clicks, large), NO, largest=0.2) == [1, 1, 0, 0, 0]
    assert click(
        group(texts("[50, 5]", "[39, 5]"), row({"boxes": [[10, 0, 90, 10]]}, frame="pixel", size=[100, 100])), NO, largest=0.2
    ) == [1, 0]
    small = row({"boxes": [[100, 0, 300, 100]]}, frame="norm1000")
    edge = group(texts("[100, 0]", "[300, 100]"), small)
    assert click(edge, NO, largest=0.2) == click(edge, NO) == [1, 1]
    assert click(group([f"<answer>{action(300, 50)}</answer>"], gold_action(box=[0, 0, 1000, 100])), NO, largest=0.3) == [0]
    with pytest.raises(ValueError, match="largest must be positive"):
        click(edge, NO, largest=0)
