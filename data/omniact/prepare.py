"""OmniACT (arXiv:2402.17553) to rows. Layout of the release: `{train,val,test}.json` beside the folder `data/`.

Each split file maps a number to paths below the root: `task` (a text file with the instruction and a PyAutoGUI script), `image`, `box`
(boxes of elements) and others. Points are (x, y) in pixels of the screenshot, whose size is read from its file; boxes have corners
`top_left` and `bottom_right` in the same pixels. Scripts are read by a pattern and never run. A script may have several lines: the row
is about the first, and `meta.more` names the others. The direction of a scroll is where the view moves. Two public readers of the release
(UGround, AutoGUI) show what its lists do not: web pages lie under other names, a script may begin with a drag, names vary in their case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.answers.coordinates import convert_point
from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.gui_rows import action_space, field, kind_of, pointing, screen_size, step_row, usable
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, in_frame, main, official, read_json, read_lines

NAME = "omniact"
PLATFORMS = ("desktop", "web")
ACTIONS = {
    "click": "click",
    "doubleClick": "double_click",
    "rightClick": "right_click",
    "moveTo": "hover",
    "write": "input_text",
    "typewrite": "input_text",
    "press": "hotkey",
    "hotkey": "hotkey",
    "scroll": "scroll",
    "vscroll": "scroll",
    "hscroll": "scroll",
}
"""Functions of PyAutoGUI. `press('enter')` is `enter`; other keys are hotkeys of one key."""
_NAMES = {name.lower(): name for name in ACTIONS}
LEFT_OUT = {"action": "a call for which rows have no action", "bad_type": "a script that is not read"}
"""Fault of one task -> why it is left out."""
SPACE = action_space(["click", "double_click", "right_click", "hover", "input_text", "hotkey", "enter", "scroll"], moves="view")
_CALL = re.compile(r"p?yautogui\.(\w+)\s*\((.*)\)\s*;?", re.IGNORECASE)
_WEB = re.compile(r"screen_(\d+)\.(png|json)$")
_AMOUNT = re.compile(r"-?\d+(?:\.\d+)?")
_ARGUMENT = re.compile(r"""\s*(?:(\w+)\s*=\s*)?(?:(-?\d+(?:\.\d+)?)|"([^"]*)"|'([^']*)')\s*(?:,|$)""")


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per task.

    Raises:
        DataError: a file or a screenshot is missing.
        RowError: a task lacks a key.
    """
    for number, item in read_json(official(root, f"{split}.json")).items():
        place = f"{split}.json, {number}"
        name = f"{NAME}-{split}-{number}"
        try:
            yield usable(name, partial(row_of, item, root, split, number, place))
        except RowError as error:
            if error.reason not in LEFT_OUT:
                raise
            yield Skipped(name, LEFT_OUT[error.reason])


def row_of(item: Any, root: Path, split: str, number: str, place: str) -> Row:
    file, image = field(item, "task", place), as_stored(root, field(item, "image", place))
    instruction, calls = script([line for _, line in read_lines(official(root, file))], f"{place} ({file})")
    size = screen_size(root, image)
    boxes = read_json(official(root, as_stored(root, item["box"]))) if item.get("box") else {}
    action, label = to_action(*calls[0], size, boxes, place)
    name = f"{NAME}-{split}-{number}"
    platform = next((part for part in Path(file).parts if part in PLATFORMS), None)
    return step_row(
        id=name,
        task=NAME,
        image=image,
        goal=instruction,
        action=action,
        space=SPACE,
        trajectory=name,
        step=0,
        length=1,
        history=(),
        meta={
            "split": split,
            "category": platform,
            "platform": platform,
            "application": Path(image).parent.name,
            "size": list(size),
            "scroll": "view",
            "element": label,
            "more": [call for call, _ in calls[1:]],
        },
    )


def as_stored(root: Path, path: str) -> str:
    """`path`, or the name of web pages: `screen1.png`, `screen1_boxes.json` for the `screen_1.png`, `screen_1.json` of the lists."""
    stored = _WEB.sub(lambda found: f"screen{found[1]}{'.png' if found[2] == 'png' else '_boxes.json'}", path)
    return stored if not (root / path).is_file() and (root / stored).is_file() else path


def script(lines: list[str], place: str) -> tuple[str, list[tuple[str, str]]]:
    """(instruction, calls as (function, text of its arguments)) of a task file."""
    marks = [i for i, line in enumerate(lines) if line.strip().lower().startswith("output script:")]
    if len(marks) != 1 or not lines[0].strip().lower().startswith("task:"):
        raise RowError("bad_type", f"{place}: expected 'Task: ...' and 'Output Script:'")
    instruction = " ".join([lines[0].split(":", 1)[1].strip(), *(line.strip() for line in lines[1 : marks[0]])]).strip()
    rest = [lines[marks[0]].split(":", 1)[1], *lines[marks[0] + 1 :]]
    calls: list[tuple[str, str]] = []
    for line in rest:
        if not line.strip():
            continue
        match = _CALL.fullmatch(line.strip())
        if match is None:
            raise RowError("action", f"{place}: {line.strip()[:80]!r} is no call of PyAutoGUI")
        calls.append((match[1], match[2]))
    if not calls:
        raise RowError("bad_value", f"{place}: the script has no call")
    return instruction, calls


def to_action(name: str, text: str, size: tuple[int, int], boxes: Any, place: str) -> tuple[dict[str, Any], str | None]:
    """(canonical action of a call, label of the smallest element around its point)."""
    name = _NAMES.get(name.lower(), name)
    kind = kind_of(name, ACTIONS, place)
    plain, named = arguments(text.strip("[] ") if kind == "scroll" else text, f"{place}, {name}")
    if kind in ("input_text", "hotkey"):
        # Keyword arguments are the pauses between keys.
        keys = [value for value in plain if isinstance(value, str)] or [str(named[key]) for key in ("message", "keys") if key in named]
        if not keys:
            raise RowError("bad_type", f"{place}: {name}({text[:60]}) has no text")
        if name == "press" and keys[0].lower() in ("enter", "return"):
            return {"action": "enter"}, None
        return {"action": kind, "text": keys[0] if kind == "input_text" else "+".join(keys)}, None
    numbers = [value for value in plain if isinstance(value, float)]
    if kind == "scroll":
        numbers = numbers or [float(value) for value in plain if isinstance(value, str) and _AMOUNT.fullmatch(value)]
        if not numbers or numbers[0] == 0:
            raise RowError("bad_value", f"{place}: {name}({text[:60]}) does not scroll")
        ways = ("right", "left") if name == "hscroll" else ("up", "down")
        return {"action": kind, "direction": ways[numbers[0] < 0]}, None
    given = [named.get("x", numbers[0] if numbers else None), named.get("y", numbers[1] if len(numbers) > 1 else None)]
    if given == [None, None]:
        return {"action": kind}, None
    point = convert_point(given, frame="pixel", axis="xyxy", target="norm1000", size=size)
    box, label = element(point, boxes, size, place)
    return pointing(kind, point, box)[0], label


def arguments(text: str, place: str) -> tuple[list[str | float], dict[str, str | float]]:
    """Positional and keyword arguments that are numbers or texts; nothing is evaluated."""
    plain: list[str | float] = []
    named: dict[str, str | float] = {}
    at = 0
    while at < len(text.rstrip()):
        match = _ARGUMENT.match(text, at)
        if match is None:
            raise RowError("bad_type", f"{place}: cannot read the arguments {text[:80]!r}")
        value = float(match[2]) if match[2] is not None else match[3] if match[3] is not None else match[4]
        if match[1]:
            named[match[1]] = value
        else:
            plain.append(value)
        at = match.end()
    return plain, named


def element(point: list[float], boxes: Any, size: tuple[int, int], place: str) -> tuple[list[float] | None, str | None]:
    """(box, label) of the smallest element that the point is in, in 0 to 1000; (None, None) if there is none."""
    if not isinstance(boxes, dict):
        raise RowError("bad_type", f"{place}: the boxes must be an object of elements")
    found: list[tuple[float, list[float], str | None]] = []
    for name, item in boxes.items():
        where = f"{place}, box {name}"
        corners = [*field(item, "top_left", where), *field(item, "bottom_right", where)]
        box = in_frame(corners, size, "norm1000")
        if box is not None and box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]:
            found.append(((box[2] - box[0]) * (box[3] - box[1]), box, item.get("label")))
    return min(found, key=lambda entry: entry[0])[1:] if found else (None, None)


DATASET = Dataset(folder=Path(__file__).resolve().parent, rows=rows, splits=("train", "val", "test"))

if __name__ == "__main__":
    main(DATASET)
