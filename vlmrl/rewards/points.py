"""Rewards `point_in_box`, `points_in_mask`, `click`: pointing, at a true box, on a true mask, and clicks.

Points, boxes and masks of a row are in the frame that it states in `meta.frame` (`answers.frame`), pixels of a picture of size
`meta.size` = [width, height]. A frame is read where it matters (distances and masks) and never guessed. `gt.action` is in `norm1000`
unless the row states another frame, as in `metrics.gui`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

from vlmrl.answers.bbox import gold_boxes
from vlmrl.answers.frame import pixels_of, sides_of
from vlmrl.answers.point import mask_score, one_point
from vlmrl.answers.tags import parse
from vlmrl.metrics.boxes import Point, centre, parse_boxes, point_in_box, valid
from vlmrl.metrics.gui import POINTING, RADIUS, Action, action_of, arguments_score, distance, parse_action, to_norm1000
from vlmrl.metrics.gui_profiles import match_step
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Sample

Rule = Literal["hit", "soft", "os_atlas", "gui_r1", "ui_r1"]
SOFT_SIGMA = 0.05
SOFT_END = 0.2
"""Width and end of the soft click rule, in shares of the screen's sides."""


@reward("point_in_box")
def point_in_box_reward(
    group: Group, ctx: RewardContext, *, answer: Literal["point", "box_centre"] = "point", inclusive: bool = True
) -> list[float | None]:
    """1 if the answered point (or the centre of the answered box) lies in a true box (`gt.boxes`), else 0; border included by default.

    `answer` says what is answered: `point` judges rows of answer type `point` with boxes, `box_centre` those of type `bbox`; others are
    not judged (None). An answer that does not give exactly one point (or box with corners in order) scores 0.
    """
    sample = group.prompt.sample
    wanted = "point" if answer == "point" else "bbox"
    if sample.answer_type != wanted or not sample.gt.get("boxes"):
        return [None] * len(group.rollouts)
    boxes = gold_boxes(sample)
    read = one_point if answer == "point" else _one_centre

    def score(text: str) -> float:
        point = read(text)
        return float(point is not None and any(point_in_box(point, box, inclusive=inclusive) for box in boxes))

    return _scored(group, score)


@reward("points_in_mask", paper="arXiv:2506.04308")
def points_in_mask(group: Group, ctx: RewardContext) -> list[float | None]:
    """Share of the answered points that lie on the true mask (`gt.mask`), in [0, 1]: the measure of RefSpatial.

    A point outside of the picture is a miss; an answer without a readable point scores 0. A sample without a true mask is not judged
    (None).

    Raises:
        ValueError: the row states no frame, or its mask is malformed.
    """
    sample = group.prompt.sample
    if sample.answer_type != "point" or sample.gt.get("mask") is None:
        return [None] * len(group.rollouts)
    return _scored(group, mask_score(sample))


@reward("click", paper="arXiv:2505.16854")
def click(
    group: Group, ctx: RewardContext, *, rule: Rule = "hit", radius: float = RADIUS, same_action: bool = True, largest: float = 1.0
) -> list[float | None]:
    """1 if the click hits the true element, else 0 (the rule `soft` gives shares near a true point).

    Judges rows whose `gt.action` points (click, long press; the answer is one JSON action), and rows of answer type `point` with
    `gt.boxes` or `gt.points` (the answer is one point); others are not judged (None).

    `rule`: `hit` is inside the true box, border included, else within `radius` of the true point, in shares of the screen's sides
    (TON). `soft` is the same with exp(-d^2 / (2 * 0.05^2)) up to a distance of 0.2 in place of the radius (ours). `os_atlas`, `gui_r1`
    and `ui_r1` are the published evaluations of `metrics.gui_profiles`, by the distance to the point (or the box's centre);
    `ui_r1` (arXiv:2503.21620) counts pixels and needs `meta.size`. `same_action` asks for the right type of action as well.
    `largest` (ours) is a guard against large boxes, which a click hits by chance and which say little of where to click: sides of a true
    box above this share of the screen's side are cut to it, about the box's middle. 1 leaves all as they are; the middle always hits.

    Raises:
        ValueError: a radius or `largest` that is not positive, a row without a frame or size where one is needed, or a malformed
            `gt.action`.
    """
    if radius <= 0:
        raise ValueError(f"click: radius must be positive, got {radius}")
    if largest <= 0:
        raise ValueError(f"click: largest must be positive, got {largest}")
    sample = group.prompt.sample
    golds = _targets(sample)
    if not golds:
        return [None] * len(group.rollouts)
    read = parse_action if sample.gt.get("action") is not None else _click_of
    side = sides_of(sample)
    screen = pixels_of(sample) if rule == "ui_r1" else (1.0, 1.0)
    golds = [_cut(to_norm1000(gold, side), largest * 1000) for gold in golds]

    def score(text: str) -> float:
        action = read(text)
        if action is None or action.point is None:
            return 0.0
        moved = to_norm1000(action, side)
        return max(_hit(moved, gold, rule, radius, screen, same_action) for gold in golds)

    return _scored(group, score)


def _hit(pred: Action, gold: Action, rule: Rule, radius: float, screen: tuple[float, float], same_action: bool) -> float:
    """Score of one click; both in `norm1000`."""
    if same_action and pred.kind != gold.kind:
        return 0.0
    pred = dataclasses.replace(pred, kind=gold.kind)
    if rule == "hit":
        return arguments_score(pred, gold, radius=radius) or 0.0
    if rule == "soft":
        if gold.box is not None or gold.point is None or pred.point is None:
            return arguments_score(pred, gold) or 0.0
        away = distance(pred.point, gold.point)
        return math.exp(-((away / SOFT_SIGMA) ** 2) / 2) if away <= SOFT_END else 0.0
    return float(bool(match_step(pred, gold, profile=rule, screen=screen).grounding))


def _cut(gold: Action, longest: float) -> Action:
    """The true action with the sides of its box no longer than this, about its middle; in `norm1000`."""
    if gold.box is None:
        return gold
    (left, top, right, bottom), (x, y) = gold.box, centre(gold.box)
    half = longest / 2
    return dataclasses.replace(gold, box=(max(left, x - half), max(top, y - half), min(right, x + half), min(bottom, y + half)))


def _targets(sample: Sample) -> list[Action]:
    """What a click may hit; empty for a row that is not about clicks."""
    action: Any = sample.gt.get("action")
    if action is not None:
        gold = action_of(action) if isinstance(action, dict) else None
        if gold is None:
            raise ValueError(f"row '{sample.id}' ({sample.source}): gt.action {action} is not an action")
        return [gold] if gold.kind in POINTING and (gold.box is not None or gold.point is not None) else []
    if sample.answer_type != "point":
        return []
    if sample.gt.get("boxes"):
        return [Action(kind="click", box=box) for box in gold_boxes(sample)]
    return [Action(kind="click", point=(float(x), float(y))) for x, y in sample.gt.get("points") or ()]


def _click_of(text: str) -> Action | None:
    point = one_point(text)
    return None if point is None else Action(kind="click", point=point)


def _one_centre(text: str) -> Point | None:
    boxes = parse_boxes(text)
    return centre(boxes[0]) if boxes is not None and len(boxes) == 1 and valid(boxes[0]) else None


def _scored(group: Group, score: Callable[[str], float]) -> list[float | None]:
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    return [0.0 if answer is None else score(answer) for answer in answers]
