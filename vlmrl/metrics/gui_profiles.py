"""Step matching rules of published GUI evaluations. They disagree, so a score without the name of its profile says nothing.

`os_atlas`, `gui_r1`, `ui_r1` and `ton` are pure functions of a predicted and a true action (points and boxes in 0 to 1000 along each
side of the screen), each to a `StepMatch`. A prediction that could not be read (None) is wrong in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vlmrl.metrics.boxes import Box, Point, centre, point_in_box
from vlmrl.metrics.gui import POINTING, RADIUS, Action, distance, normalise

Profile = Literal["os_atlas", "gui_r1", "ui_r1", "ton"]
SCREEN = (1080, 2400)
"""Width and height in pixels of the screens that `ui_r1` is usually measured on."""
TON_RADIUS = 0.2
"""The radius of TON's evaluation code; its reward and its paper have 0.14 (`metrics.gui.RADIUS`)."""

AITW_ENLARGE = 1.4
"""How much longer AITW makes the sides of element boxes, in shares of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMatch:
    """How one step compares. None: the profile does not count this step there."""

    type: bool
    grounding: bool | None
    """Whether the click hits; only where the true action points."""
    step: bool | None
    """Whether the step is right, by what the profile calls right."""


def os_atlas(pred: Action | None, gold: Action) -> StepMatch:
    """Clicks within 0.14 (L2 of shares of both sides; the limit hits); typed text and app names equal or with the same first word;
    other arguments equal. Grounding counts among clicks whose type is right; every step counts for the step rate
    (arXiv:2410.23218, its evaluation code).
    """
    right = pred is not None and pred.kind == gold.kind
    if gold.kind in POINTING:
        hit = _within(pred, gold, lambda a, b: distance(a, b) <= RADIUS)
        return StepMatch(type=right, grounding=hit if right else None, step=right and hit)
    return StepMatch(type=right, grounding=None, step=right and pred is not None and _same_arguments(pred, gold, _same_first_word))


def gui_r1(pred: Action | None, gold: Action) -> StepMatch:
    """Clicks inside an ellipse, (dx / W)^2 + (dy / H)^2 < 0.14^2 (the limit misses); typed text and app names with an F1 of their sets of
    words of at least 0.5, or both one word and one inside the other; other arguments equal. Steps without arguments do not count for the
    step rate (arXiv:2504.10458, its evaluation code).

    Grounding and step ask whether the arguments are right, whatever the predicted type: a long press at the right place is a wrong type
    and a right step. So the published code counts.
    """
    right = pred is not None and pred.kind == gold.kind
    if gold.kind in POINTING:
        hit = _within(pred, gold, lambda a, b: distance(a, b) < RADIUS)
        return StepMatch(type=right, grounding=hit, step=hit)
    if gold.text is None and gold.direction is None and gold.status is None:
        return StepMatch(type=right, grounding=None, step=None)
    return StepMatch(type=right, grounding=None, step=pred is not None and _same_arguments(pred, gold, _close))


def ui_r1(pred: Action | None, gold: Action, *, screen: tuple[float, float] = SCREEN) -> StepMatch:
    """Clicks closer than 0.14 of the screen's width, in pixels along both sides (the limit misses), with the right type. Nothing but
    clicks counts for grounding and steps (arXiv:2503.21620, its evaluation code). `screen` is (width, height) in pixels.
    """
    right = pred is not None and pred.kind == gold.kind
    if gold.kind not in POINTING:
        return StepMatch(type=right, grounding=None, step=None)

    def near(a: Point, b: Point) -> bool:
        dx, dy = ((a[i] - b[i]) * screen[i] / 1000 for i in (0, 1))
        # both sides rounded: that the limit misses must not depend on the last bit
        return round(math.hypot(dx, dy), 9) < round(RADIUS * screen[0], 9)

    hit = right and _within(pred, gold, near)
    return StepMatch(type=right, grounding=hit, step=hit)


def ton(pred: Action | None, gold: Action, *, radius: float = TON_RADIUS) -> StepMatch:
    """Clicks inside the true box (border included), or within `radius` of the true point where there is no box (the limit hits); typed
    text and app names equal or one inside the other; other arguments equal. Every step counts (arXiv:2505.16854, its evaluation code).

    A scroll is of one of four types, by its direction: one in another direction is of the wrong type. Of the two radii in use, 0.2
    (evaluation) and 0.14 (reward), both are worth reporting. Text without a character is equal to itself only: taken literally, it would
    be inside every other text.
    """
    right = pred is not None and pred.kind == gold.kind and (gold.kind != "scroll" or pred.direction == gold.direction)
    if gold.kind in POINTING:
        if gold.box is not None:
            inside = pred is not None and pred.point is not None and point_in_box(pred.point, gold.box)
        else:
            inside = _within(pred, gold, lambda a, b: distance(a, b) <= radius)
        return StepMatch(type=right, grounding=right and inside, step=right and inside)
    return StepMatch(type=right, grounding=None, step=right and pred is not None and _same_arguments(pred, gold, _contains))


def enlarged(box: Box, by: float = AITW_ENLARGE) -> Box:
    """Make a box's sides longer by `by` times their length, around its centre, as AITW does it (arXiv:2307.10088, its matching code).

    A corner that would leave the screen at the top or left is put on its edge, and the size stays; no side is longer than the screen's.

    Raises:
        ValueError: `by` is negative.
    """
    if by < 0:
        raise ValueError(f"enlarged: by must be at least 0, got {by}")
    width, height = box[2] - box[0], box[3] - box[1]
    left, top = max(0.0, box[0] - by * width / 2), max(0.0, box[1] - by * height / 2)
    return left, top, left + min(1000.0, (1 + by) * width), top + min(1000.0, (1 + by) * height)


def aitw_tap(pred: Point, gold: Point, boxes: Sequence[Box] = (), *, radius: float = RADIUS, by: float = AITW_ENLARGE) -> bool:
    """Check whether two taps are the same for AITW (arXiv:2307.10088): both in one of the screen's element boxes after enlarging it
    (borders included), or within `radius` of each other in shares of the sides (the limit hits). Everything in 0 to 1000.

    AITZ and later codes enlarge by 0.2 (`by`) in place of 1.4.
    """
    if any(point_in_box(pred, around) and point_in_box(gold, around) for around in (enlarged(box, by) for box in boxes)):
        return True
    return distance(pred, gold) <= radius


def match_step(pred: Action | None, gold: Action, *, profile: Profile, screen: tuple[float, float] = SCREEN) -> StepMatch:
    """Compare one step by the named profile. `screen`, (width, height) in pixels, is for `ui_r1`.

    Raises:
        ValueError: the profile is unknown.
    """
    if profile == "os_atlas":
        return os_atlas(pred, gold)
    if profile == "gui_r1":
        return gui_r1(pred, gold)
    if profile == "ui_r1":
        return ui_r1(pred, gold, screen=screen)
    if profile == "ton":
        return ton(pred, gold)
    raise ValueError(f"unknown profile '{profile}'; known: os_atlas, gui_r1, ui_r1, ton")


def _within(pred: Action | None, gold: Action, near: Callable[[Point, Point], bool]) -> bool:
    """Whether the predicted point is near the true one (the middle of the box, where the truth is only a box)."""
    target = gold.point if gold.point is not None or gold.box is None else centre(gold.box)
    return pred is not None and pred.point is not None and target is not None and near(pred.point, target)


def _same_arguments(pred: Action, gold: Action, alike: Callable[[str, str], bool]) -> bool:
    """Arguments besides points, for the same type: those that the true action has. Texts without case, superfluous spaces and quotes."""
    if gold.text is None:
        return (gold.direction is None and gold.status is None) or (pred.direction, pred.status) == (gold.direction, gold.status)
    if pred.text is None:
        return False
    a, b = normalise(pred.text), normalise(gold.text)
    return a == b or (a != "" and b != "" and alike(a, b))


def _same_first_word(a: str, b: str) -> bool:
    return a.split()[0] == b.split()[0]


def _close(a: str, b: str) -> bool:
    first, second = (set(text.replace("[", " ").replace("]", " ").split()) for text in (a, b))
    if len(first) == len(second) == 1 and _contains(*first, *second):
        return True
    # F1 = 2 |a & b| / (|a| + |b|) >= 0.5, without a division
    return 4 * len(first & second) >= len(first) + len(second) > 0


def _contains(a: str, b: str) -> bool:
    return a in b or b in a
