"""GUI actions on a page: what each of `metrics.gui` does there, how they are explained to a model, and some that are worth trying."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from vlmrl.extras.agents.browser.page import Page
from vlmrl.extras.agents.gui import pixel, read_key
from vlmrl.metrics.gui import Action

LONGEST_TEXT = 500
"""Characters that one action types; more is no action."""
SCROLL = 100
"""Pixels of one scroll."""
EXPLANATION = (
    'Answer with one action as JSON: {"action": "click", "coordinate": [x, y]} (also double_click, right_click, hover, press, release), '
    '{"action": "type", "text": "..."}, {"action": "key", "text": "ctrl+a"}, {"action": "scroll", "direction": "down"} or '
    '{"action": "wait"}. Coordinates go from 0 to 1000 along each side.'
)
_DIRECTIONS = {"down": (0, SCROLL), "up": (0, -SCROLL), "right": (SCROLL, 0), "left": (-SCROLL, 0)}
_PLACES = """((selector, width, height) => [...document.querySelectorAll(selector)].map(e => [e, e.getBoundingClientRect()])
  .filter(([e, r]) => r.width > 0 && r.height > 0 && !['OPTION', 'SCRIPT', 'STYLE'].includes(e.tagName))
  .map(([e, r]) => [r.x + r.width / 2, r.y + r.height / 2]).filter(([x, y]) => x >= 0 && y >= 0 && x < width && y < height))"""


def act(page: Page, action: Action, *, middle: tuple[int, int]) -> bool:
    """Do it; False where it is no action of a page, or lacks something. `middle`: where a scroll without a point is."""
    kind = action.kind
    at = None if action.point is None else pixel(action.point, page.width, page.height)
    if action.point is not None and at is None:
        return False
    if kind in _POINTING:
        if at is None:
            return False
        _POINTING[kind](page, *at)
    elif kind == "input_text":
        if not action.text or len(action.text) > LONGEST_TEXT:
            return False
        if at is not None:
            page.click(*at)
        page.type(action.text)
    elif kind in ("key", "hotkey", "enter"):
        pressed = read_key("enter" if kind == "enter" else action.text or "")
        if pressed is None:
            return False
        page.key(*pressed)
    elif kind == "scroll":
        if action.direction not in _DIRECTIONS:
            return False
        page.scroll(*(at or middle), *_DIRECTIONS[action.direction])
    else:
        return kind == "wait"
    return True


def propose(page: Page, n: int, selector: str) -> str:
    """Mostly a click on one of these elements; sometimes text, a key, a scroll, time, or a point anywhere. All for n = 0, 1, 2, ..."""
    kind = n % 8
    if kind == 5:
        return json.dumps({"action": "type", "text": ("abc", "7", "a b")[n // 8 % 3]})
    if kind == 6:
        others = [{"action": "key", "text": "Tab"}, {"action": "scroll", "direction": "down"}, {"action": "wait"}]
        return json.dumps(others[n // 8 % 3])
    places = page.run(f"{_PLACES}({json.dumps(selector)}, {page.width}, {page.height})")
    if kind == 7 or not places:
        return _click([n // 8 % 1001, n // 8009 % 1001])
    x, y = places[n // 8 % len(places)]
    return _click([round(1000 * x / page.width), round(1000 * y / page.height)])


def _press(page: Page, x: int, y: int) -> None:
    page.mouse("mouseMoved", x, y)
    page.mouse("mousePressed", x, y, button="left", count=1)


def _release(page: Page, x: int, y: int) -> None:
    page.mouse("mouseMoved", x, y)
    page.mouse("mouseReleased", x, y, button="left", count=1)


_POINTING: Mapping[str, Callable[[Page, int, int], None]] = {
    "click": lambda page, x, y: page.click(x, y),
    "double_click": lambda page, x, y: page.click(x, y, count=2),
    "right_click": lambda page, x, y: page.click(x, y, button="right"),
    "hover": lambda page, x, y: page.mouse("mouseMoved", x, y),
    "press": _press,
    "release": _release,
}


def _click(point: list[int]) -> str:
    return json.dumps({"action": "click", "coordinate": point})
