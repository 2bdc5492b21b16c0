"""GUI actions: reading one from text, and how well it matches the true one.

An action is one JSON object: `{"action": "click", "coordinate": [x, y]}`, `{"action": "input_text", "text": "..."}`,
`{"action": "scroll", "direction": "down"}`, `{"action": "open_app", "app_name": "..."}`, `{"action": "navigate_back"}`, ...
Nothing of a model's text is ever evaluated. Points and boxes of the functions here are in 0 to 1000 along each side of the screen
(frame `rel1000` of `metrics.boxes`); map pixels with `boxes.convert` first.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vlmrl.metrics.boxes import Box, Point, point_in_box

ALIASES = {
    "tap": "click",
    "type": "input_text",
    "press_back": "navigate_back",
    "back": "navigate_back",
    "press_home": "navigate_home",
    "home": "navigate_home",
    "press_enter": "enter",
    "finish": "complete",
    "finished": "complete",
}
"""Other names of the same actions, in lower case."""
POINTING = ("click", "long_press")
TEXT_KEYS = {"input_text": "text", "open_app": "app_name", "answer": "text"}
RADIUS = 0.14
"""A click this far from a true point, in shares of the screen's sides, still counts where there is no true box (arXiv:2505.16854)."""
_KEYS = ("action", "coordinate", "text", "app_name", "direction", "status")
_CAP = 4096
_LARGEST = 1e9

Profile = Literal["os_atlas", "gui_r1", "ui_r1"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One step on a screen. Arguments that the action does not have are None."""

    kind: str
    """In lower case, aliases resolved."""
    point: Point | None = None
    text: str | None = None
    """What is typed, or the name of the app."""
    direction: str | None = None
    status: str | None = None
    box: Box | None = None
    """Of the true element; only in ground truth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMatch:
    """How one step compares. None: the profile does not count it."""

    type: bool
    grounding: bool | None
    """Whether the click hits; only where the true action points."""
    step: bool | None


def parse_action(text: str) -> Action | None:
    """The action that an answer gives; None if it is not one JSON object with an `action` and known keys of the right types."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end <= start or len(text) > _CAP or text.count("{") > 2 or text.count("[") > 4:
        return None
    if text[:start].strip() or text[end + 1 :].strip():
        return None
    try:
        value = json.loads(text[start : end + 1])
    except ValueError:
        return None
    if not isinstance(value, dict) or set(value) - set(_KEYS):
        return None
    return action_of(value)


def action_of(value: Mapping[str, Any]) -> Action | None:
    """The action of a JSON object (of an answer, or `gt.action` of a row, which may also have a `box`); None if it is malformed."""
    kind = value.get("action")
    if not isinstance(kind, str):
        return None
    kind = ALIASES.get(kind.strip().lower(), kind.strip().lower())
    point, box = _numbers(value.get("coordinate"), 2), _numbers(value.get("box"), 4)
    texts = {key: value.get(key) for key in ("text", "app_name", "direction", "status")}
    wrong = any(given is not None and not isinstance(given, str) for given in texts.values())
    if wrong or (value.get("coordinate") is not None and point is None) or (value.get("box") is not None and box is None):
        return None
    direction, status = texts["direction"], texts["status"]
    return Action(
        kind=kind,
        point=None if point is None else (point[0], point[1]),
        text=texts[TEXT_KEYS.get(kind, "text")],
        direction=None if direction is None else direction.strip().lower(),
        status=None if status is None else status.strip().lower(),
        box=None if box is None else (box[0], box[1], box[2], box[3]),
    )


def _numbers(value: object, count: int) -> list[float] | None:
    if not isinstance(value, list) or len(value) != count:
        return None
    # NaN and infinity are valid for json.loads and fail the comparison; so does an integer too large for a float.
    return [float(v) for v in value] if all(type(v) in (int, float) and abs(v) <= _LARGEST for v in value) else None


def normalise(text: str) -> str:
    """Lower case, single spaces, without quotes around it."""
    return " ".join(text.strip().strip("\"'`").lower().split())


def token_f1(a: str, b: str) -> float:
    """F1 of the words of two texts as multisets, in [0, 1]; symmetric; 1 if both are empty."""
    first, second = Counter(normalise(a).split()), Counter(normalise(b).split())
    if not first or not second:
        return float(first == second)
    return 2 * sum((first & second).values()) / (sum(first.values()) + sum(second.values()))


def distance(a: Point, b: Point) -> float:
    """Euclidean distance of two points of 0 to 1000, in shares of the screen's sides; rounded to 9 digits."""
    return round(math.hypot((a[0] - b[0]) / 1000, (a[1] - b[1]) / 1000), 9)


def arguments_score(pred: Action, gold: Action, *, radius: float = RADIUS) -> float | None:
    """How well the arguments match, in [0, 1], for two actions of the same type; None if the true one lacks its arguments.

    Pointing: 1 inside the true box (border included), or within `radius` of the true point where there is no box. Typed text: F1 of
    the words. App name, direction and status: equality after normalising. Actions without arguments: 1.
    """
    if gold.kind in POINTING:
        if pred.point is None:
            return None if gold.box is None and gold.point is None else 0.0
        if gold.box is not None:
            return float(point_in_box(pred.point, gold.box))
        return None if gold.point is None else float(distance(pred.point, gold.point) <= radius)
    if gold.kind == "scroll":
        return None if gold.direction is None else float(pred.direction == gold.direction)
    if gold.kind == "open_app":
        return None if gold.text is None else float(pred.text is not None and normalise(pred.text) == normalise(gold.text))
    if gold.kind == "input_text":
        return None if gold.text is None else token_f1(pred.text, gold.text) if pred.text is not None else 0.0
    score = 1.0 if gold.status is None else float(pred.status == gold.status)
    return score * (token_f1(pred.text or "", gold.text) if gold.text is not None else 1.0)


def match_step(pred: Action | None, gold: Action, *, profile: Profile, screen: tuple[int, int] = (1080, 2400)) -> StepMatch:
    """Compare one step by the rules of a published evaluation. `screen` is (width, height) in pixels, for `ui_r1`.

    `os_atlas`: clicks within 0.14 (L2 of shares of both sides), text equal or with the same first word, grounding counts only with
    the right type. `gui_r1`: clicks within an ellipse of less than 0.14, text with F1 >= 0.5 or one word inside the other text,
    grounding whatever the type, steps without arguments not counted. `ui_r1`: clicks within less than 0.14 of the screen's width in
    pixels; nothing else is counted. A prediction that could not be read is wrong.
    """
    right = pred is not None and pred.kind == gold.kind
    if gold.kind in POINTING:
        hit = pred is not None and _hits(pred, gold, profile, screen)
        if profile == "os_atlas":
            return StepMatch(type=right, grounding=hit if right else None, step=right and hit)
        if profile == "ui_r1":
            return StepMatch(type=right, grounding=right and hit, step=right and hit)
        return StepMatch(type=right, grounding=hit, step=right and hit)
    if profile == "ui_r1":
        return StepMatch(type=right, grounding=None, step=None)
    without = gold.text is None and gold.direction is None and gold.status is None
    if without:
        return StepMatch(type=right, grounding=None, step=None if profile == "gui_r1" else right)
    return StepMatch(type=right, grounding=None, step=right and pred is not None and _same_arguments(pred, gold, profile))


def _hits(pred: Action, gold: Action, profile: Profile, screen: tuple[int, int]) -> bool:
    target = gold.point
    if target is None and gold.box is not None:
        target = ((gold.box[0] + gold.box[2]) / 2, (gold.box[1] + gold.box[3]) / 2)
    if pred.point is None or target is None:
        return False
    if profile == "os_atlas":
        return distance(pred.point, target) <= RADIUS
    if profile == "gui_r1":
        return distance(pred.point, target) < RADIUS
    dx, dy = ((pred.point[i] - target[i]) * screen[i] / 1000 for i in (0, 1))
    return round(math.hypot(dx, dy), 9) < round(RADIUS * screen[0], 9)


def _same_arguments(pred: Action, gold: Action, profile: Profile) -> bool:
    if gold.text is None:
        return (pred.direction, pred.status) == (gold.direction, gold.status)
    if pred.text is None:
        return False
    a, b = normalise(pred.text), normalise(gold.text)
    if a == b:
        return True
    first, second = a.split(), b.split()
    if not first or not second:
        return False
    if profile == "os_atlas":
        return first[0] == second[0]
    single = len(first) == 1 or len(second) == 1
    return token_f1(a, b) >= 0.5 or (single and (a in b or b in a))
