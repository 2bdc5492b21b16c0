"""Makes rows of GUI data sets: one step on a screen, or one element to click, from values that are already in the frame of the row.

A row is of the answer type `action`. Its true action is one JSON object of the canonical names of `metrics.gui.ACTIONS`, with
coordinates in 0 to 1000 along each side (`meta.frame` is `norm1000`) and, where the data has one, the box of the true element in
`gt.action.box`. `meta.size` is [width, height] of the screen in pixels, where the data says it.

Elements to click also come in another form (`element_row`): of the answer type `point`, the instruction alone as the question, in pixels
of the screenshot as the model sees it. Qwen2.5-VL was trained to answer in these, and a recipe or suite words the rest (`data.prompt`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from vlmrl.answers.coordinates import DIGITS, plain
from vlmrl.errors import DataError, MediaError, RowError
from vlmrl.extras.importers.prepare.prepare import Embedded, Row, Skipped
from vlmrl.media.access import read_media
from vlmrl.media.headers import image_size
from vlmrl.media.resize import smart_resize

Action = dict[str, Any]
Moves = Literal["finger", "view"]
"""What the direction of a scroll means in a data set: where the finger goes, or where on the page one gets to (the opposite)."""

SHOWN = 4
"""Past steps in the prompt, as in TON (arXiv:2505.16854); `trajectory.history` has all of them."""
FORMS = ("action", "point-1003520", "point-2007040", "point-4014080")
"""Forms of elements to click, the default first; the number is the most pixels of the screenshot that the model is shown."""
_SIDE, _LEAST = 28, 3136
"""A side of a screenshot that Qwen2.5-VL sees is a multiple of the first; least pixels, which are the default of `media.min_pixels`."""
MAX_BYTES = 64 << 20
"""Most bytes of a screenshot whose size is read."""
_FORMS = {
    "click": '{"action": "click", "coordinate": [x, y]}',
    "double_click": '{"action": "double_click", "coordinate": [x, y]}',
    "right_click": '{"action": "right_click", "coordinate": [x, y]}',
    "long_press": '{"action": "long_press", "coordinate": [x, y]}',
    "hover": '{"action": "hover", "coordinate": [x, y]}',
    "input_text": '{"action": "input_text", "text": "..."}',
    "select": '{"action": "select", "text": "..."}',
    "scroll": '{"action": "scroll", "direction": "up|down|left|right"}',
    "open_app": '{"action": "open_app", "app_name": "..."}',
    "hotkey": '{"action": "hotkey", "text": "ctrl+c"}',
    "answer": '{"action": "answer", "text": "..."}',
}
_DIRECTION = {"finger": "the direction of a scroll is where the finger moves", "view": "the direction of a scroll is where the view moves"}


def field(row: object, key: str, place: str) -> Any:
    """A value that every record of the data set has.

    Raises:
        RowError: `not_object` or `missing_key`, with the place.
    """
    if not isinstance(row, Mapping):
        raise RowError("not_object", f"{place}: expected an object, got {type(row).__name__}")
    if key not in row:
        raise RowError("missing_key", f"{place}: '{key}' is missing; is this another release of the data set?")
    return row[key]


def screen_size(root: Path, path: str) -> tuple[int, int]:
    """(width, height) in pixels of a screenshot below `root`, for data sets in pixels that do not say it.

    Raises:
        DataError: the file is missing or no image.
    """
    try:
        height, width = image_size(read_media(root, path, max_bytes=MAX_BYTES))
    except MediaError as error:
        raise DataError(f"{root / path}: {error}; coordinates in pixels need the screenshot to be there") from error
    return width, height


def usable(id: str, make: Callable[[], Row], unit: object = None) -> Row | Skipped:
    """A row, or its record as skipped where the values themselves are no good: a point off the screen, a box without area, no text.
    `unit` is its value of the unit that the card counts.

    Raises:
        RowError: every other fault (an unknown action, a missing key): then it is not the data set that the script was written for.
    """
    try:
        return make()
    except RowError as error:
        if error.reason == "frame":
            return Skipped(id, "coordinates off the screen", unit)
        if error.reason == "bad_value":
            return Skipped(id, "a box without area, or an empty text", unit)
        raise


def kind_of(name: object, table: Mapping[Any, str], place: str) -> str:
    """The canonical action for a data set's own name.

    Raises:
        RowError: `action`: the table does not have it.
    """
    if name not in table:
        raise RowError("action", f"{place}: unknown action {name!r}; known: {', '.join(map(str, table))}; add it to ACTIONS of prepare.py")
    return table[name]


def swipe(dx: float, dy: float, *, tie: float = 1.0) -> str:
    """Where a finger that moves by (dx, dy) goes; vertical where |dy| >= tie * |dx|. Both in shares of the screen, y down."""
    if abs(dy) >= tie * abs(dx):
        return "up" if dy < 0 else "down"
    return "left" if dx < 0 else "right"


def describe(action: Mapping[str, Any]) -> str:
    """An action as a past step in words: `click [500, 120]`, `input_text "taxi"`, `scroll up`, `navigate_back`."""
    words = [str(action["action"])]
    if "coordinate" in action:
        words.append(json.dumps(action["coordinate"]))
    words += [json.dumps(action[key], ensure_ascii=False) for key in ("text", "app_name") if key in action]
    words += [str(action[key]) for key in ("direction", "status") if key in action]
    return " ".join(words)


def pointing(kind: str, point: Sequence[float] | None, box: Sequence[float] | None = None) -> tuple[Action, bool]:
    """(action with the point and, where the point is in it, the box; whether the box was left out since the point misses it).

    Without a point it is the middle of the box.
    """
    if point is None and box is not None:
        point = [round((box[i] + box[i + 2]) / 2, 2) for i in (0, 1)]
    if point is None:
        return {"action": kind}, False
    action: Action = {"action": kind, "coordinate": [plain(v) for v in point]}
    if box is None:
        return action, False
    if not _inside(point, box):
        return action, True
    return action | {"box": [plain(v) for v in box]}, False


def action_space(kinds: Iterable[str], moves: Moves | None = None) -> str:
    """The sentence of a prompt that lists the actions, each once."""
    forms = ", ".join(_FORMS.get(kind, json.dumps({"action": kind})) for kind in dict.fromkeys(kinds))
    note = f"; {_DIRECTION[moves]}" if moves is not None else ""
    return f"Actions: {forms}. Coordinates are 0 to 1000 along each side{note}."


def step_row(
    *,
    id: str,
    task: str,
    image: str,
    goal: str,
    action: Action,
    space: str,
    trajectory: str,
    step: int,
    length: int,
    history: Sequence[str],
    meta: Mapping[str, Any],
    now: str | None = None,
    thought: str | None = None,
) -> Row:
    """One step of a trajectory: goal, the last past steps, the instruction of the step (`now`, low level only), the true action.

    Args:
        action: canonical, in 0 to 1000; a `box` stays out of the answer.
        space: of `action_space`.
        step: from 0, of `length`.
        history: the past steps in words, as many as there are.

    Raises:
        RowError: `bad_value`: no goal.
    """
    if not goal.strip():
        raise RowError("bad_value", f"{id}: the goal is empty")
    done = "; ".join(text.strip() for text in history[-SHOWN:] if text.strip()) or "nothing"
    lines = [f"Task: {goal.strip()}", f"Done: {done}"]
    if now is not None:
        lines.append(f"Now: {now.strip()}")
    row: Row = {
        "id": id,
        "task": task,
        "answer_type": "action",
        "data_type": "gui",
        "image": image,
        "prompt": "\n".join([*lines, space]),
        "answer": answer_of(action),
        "gt": {"action": action},
        "trajectory": {"id": trajectory, "step": step, "length": length, "goal": goal.strip(), "history": list(history)},
        "meta": {"frame": "norm1000", **meta},
    }
    if thought is not None and thought.strip():
        row["thought"] = thought.strip()
    return row


def target_row(
    *, id: str, task: str, image: str | Embedded, instruction: str, box: Sequence[float], size: tuple[int, int], meta: Mapping[str, Any]
) -> Row:
    """One element to click: the instruction, and the box that the click has to be in. The answer is the middle of the box.

    Args:
        box: [x1, y1, x2, y2] in 0 to 1000.
        size: (width, height) of the screen in pixels.

    Raises:
        RowError: `bad_value`: no instruction.
    """
    if not instruction.strip():
        raise RowError("bad_value", f"{id}: the instruction is empty")
    action, _ = pointing("click", None, box)
    return {
        "id": id,
        "task": task,
        "answer_type": "action",
        "data_type": "gui",
        "image": image,
        "prompt": f"Click on the element for: {instruction.strip()}\n{action_space(['click'])}",
        "answer": answer_of(action),
        "gt": {"action": action},
        "meta": {"frame": "norm1000", "size": list(size), **meta},
    }


def seen_size(size: tuple[int, int], most: int) -> tuple[int, int]:
    """(width, height) in which Qwen2.5-VL sees a screenshot of `size` (width, height) with `media.max_pixels: most`."""
    height, width = smart_resize(size[1], size[0], factor=_SIDE, min_pixels=_LEAST, max_pixels=most)
    return width, height


def element_row(
    form: str,
    *,
    id: str,
    task: str,
    image: str | Embedded,
    instruction: str,
    box: Sequence[float],
    size: tuple[int, int],
    meta: Mapping[str, Any],
) -> Row:
    """One element to click: `target_row` for the form `action`, else a point in the box, both in pixels of `seen_size`.

    Args:
        form: one of `FORMS`.
        box: [x1, y1, x2, y2] in 0 to 1000.
        size: (width, height) of the screen in pixels.

    Raises:
        RowError: `bad_value`: no instruction.
        ValueError: an unknown form.
    """
    if form not in FORMS:
        raise ValueError(f"form '{form}' is not known; known: {', '.join(FORMS)}")
    row = target_row(id=id, task=task, image=image, instruction=instruction, box=box, size=size, meta=meta)
    if form == "action":
        return row
    width, height = seen_size(size, int(form.removeprefix("point-")))
    seen = [round(value * side / 1000, DIGITS) for value, side in zip(box, (width, height, width, height), strict=True)]
    middle = [round((seen[i] + seen[i + 2]) / 2) for i in (0, 1)]
    return row | {
        "answer_type": "point",
        "prompt": instruction.strip(),
        # whole pixels, as the model writes them; of an element thinner than one the exact middle
        "answer": json.dumps(middle if _inside(middle, seen) else pointing("click", None, seen)[0]["coordinate"]),
        "gt": {"boxes": [seen]},
        "meta": {**row["meta"], "frame": "pixel", "size": [width, height], "screen": list(size)},
    }


def _inside(point: Sequence[float], box: Sequence[float]) -> bool:
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def answer_of(action: Mapping[str, Any]) -> str:
    """What the model should write: the action without the box of its element."""
    return json.dumps({key: value for key, value in action.items() if key != "box"}, ensure_ascii=False)
