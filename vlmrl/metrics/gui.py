"""GUI actions: reading one from text, and how well it matches the true one.

An action is one JSON object: `{"action": "click", "coordinate": [x, y]}`, `{"action": "input_text", "text": "..."}`,
`{"action": "scroll", "direction": "down"}`, `{"action": "open_app", "app_name": "..."}`, `{"action": "navigate_back"}`, ...
Nothing of a model's text is ever evaluated. Points and boxes of the functions here are in 0 to 1000 along each side of the screen
(frame `norm1000`); map actions in pixels with `to_norm1000` first. The rules by which published evaluations
compare steps are in `metrics.gui_profiles`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vlmrl.metrics.boxes import Box, Point, convert, point_in_box

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
POINTING = ("click", "long_press", "double_click", "right_click", "hover")
TEXT_KEYS = {"input_text": "text", "open_app": "app_name", "answer": "text"}
"""Where an action keeps its text; `text` for those not listed."""
ACTIONS = (
    *POINTING,
    "input_text",
    "select",
    "select_text",
    "copy",
    "scroll",
    "open_app",
    "navigate_back",
    "navigate_home",
    "app_switch",
    "enter",
    "hotkey",
    "wait",
    "complete",
    "impossible",
    "answer",
)
"""The canonical actions: what data sets are mapped to. Others can be read and compared too, as actions without rules of their own."""
RADIUS = 0.14
"""A click this far from a true point, in shares of the screen's sides, still counts where there is no true box (arXiv:2505.16854)."""
_KEYS = ("action", "coordinate", "text", "app_name", "direction", "status")
_CAP = 4096
_LARGEST = 1e9


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


def parse_action(text: str) -> Action | None:
    """Read the action that an answer gives; None if it is not one JSON object with an `action` and known keys of the right types."""
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
    """Read the action of a JSON object (of an answer, or `gt.action` of a row, which may also have a `box`); None if it is malformed."""
    kind = value.get("action")
    if not isinstance(kind, str):
        return None
    kind = ALIASES.get(kind.strip().lower(), kind.strip().lower())
    point, box = _numbers(value.get("coordinate"), 2), _numbers(value.get("box"), 4)
    texts = {key: value.get(key) for key in ("text", "app_name", "direction", "status")}
    # an argument of a wrong type makes all of it unreadable: left out, it could match a true action without that argument
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


def to_norm1000(action: Action, sides: tuple[float, float]) -> Action:
    """Convert an action on a screen with these sides (width, height) in the units of its point and box to 0 to 1000 along each side.

    Raises:
        ValueError: a side that is not positive.
    """
    point, box = action.point, action.box
    if point is not None:
        x, y = convert(point, sides, source="pixel", target="norm1000")
        point = (x, y)
    if box is not None:
        x1, y1, x2, y2 = convert(box, sides, source="pixel", target="norm1000")
        box = (x1, y1, x2, y2)
    return replace(action, point=point, box=box)


def normalise(text: str) -> str:
    """Normalise a text: lower case, single spaces, without quotes around it."""
    return " ".join(text.strip().strip("\"'`").lower().split())


def token_f1(a: str, b: str) -> float:
    """Compute F1 of the words of two texts as multisets, in [0, 1]; symmetric; 1 if both are empty."""
    first, second = Counter(normalise(a).split()), Counter(normalise(b).split())
    if not first or not second:
        return float(first == second)
    return 2 * sum((first & second).values()) / (sum(first.values()) + sum(second.values()))


def distance(a: Point, b: Point) -> float:
    """Compute the Euclidean distance of two points of 0 to 1000, in shares of the screen's sides; rounded to 9 digits."""
    return round(math.hypot((a[0] - b[0]) / 1000, (a[1] - b[1]) / 1000), 9)


def arguments_score(pred: Action, gold: Action, *, radius: float = RADIUS) -> float | None:
    """Score how well the arguments match, for two actions of the same type.

    Pointing: 1 inside the true box (border included), or within `radius` of the true point where there is no box. Typed text: F1 of
    the words. App name, direction and status: equality after normalising. Actions without arguments: 1.

    Returns:
        In [0, 1]; None if the true one lacks its arguments.
    """
    if gold.kind in POINTING:
        if pred.point is None:
            return None if gold.box is None and gold.point is None else 0.0
        # a true box says more than a point within it, so the radius counts only where there is none
        if gold.box is not None:
            return float(point_in_box(pred.point, gold.box))
        return None if gold.point is None else float(distance(pred.point, gold.point) <= radius)
    if gold.kind == "scroll":
        return None if gold.direction is None else float(pred.direction == gold.direction)
    if gold.kind == "open_app":
        return None if gold.text is None else float(pred.text is not None and normalise(pred.text) == normalise(gold.text))
    if gold.kind == "input_text":
        return None if gold.text is None else token_f1(pred.text, gold.text) if pred.text is not None else 0.0
    # any other action, those of plug-ins too: what the truth states must agree
    score = 1.0 if gold.status is None else float(pred.status == gold.status)
    return score * (token_f1(pred.text or "", gold.text) if gold.text is not None else 1.0)
