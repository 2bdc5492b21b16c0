"""GUI-Odyssey (arXiv:2406.08451) to rows. Layout of the release: `annotations/{episode}.json`, `screenshots/`, `splits/random_split.json`.

Points are (x, y) in 0 to 1000. Keys are clicks or long presses whose `info` names the key. A scroll is given by the finger's first and
last point, and goes where the finger goes (the rule of the authors' converter). The newer release (8,334 episodes) adds `sam2_bbox`,
the box of the clicked element, and instructions per step; both releases are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.answers.coordinates import convert_box, convert_point
from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.gui_rows import action_space, describe, field, kind_of, pointing, step_row, swipe, usable
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, official, read_json

NAME = "gui_odyssey"
ACTIONS = {
    "CLICK": "click",
    "LONG_PRESS": "long_press",
    "SCROLL": "scroll",
    "TEXT": "input_text",
    "TYPE": "input_text",
    "COMPLETE": "complete",
    "INCOMPLETE": "impossible",
    "IMPOSSIBLE": "impossible",
    "HOME": "navigate_home",
    "BACK": "navigate_back",
}
"""`action`. The authors' files and their description of them use different names for three of them."""
KEYS = {"KEY_HOME": "navigate_home", "KEY_BACK": "navigate_back", "KEY_APPSELECT": "app_switch"}
"""`info` of clicks and long presses that are keys."""
SPACE = action_space([*ACTIONS.values(), "app_switch"], moves="finger")


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per step of the episodes of the authors' random split, in its order.

    Raises:
        DataError: a file is missing or not JSON.
        RowError: an episode is not as described, or a step has an unknown action.
    """
    names = field(read_json(official(root, "splits/random_split.json")), split, "splits/random_split.json")
    for name in names:
        file = f"annotations/{name if name.endswith('.json') else f'{name}.json'}"
        yield from episode(read_json(official(root, file)), split, file)


def episode(data: Any, split: str, place: str) -> Iterator[Row | Skipped]:
    past: list[str] = []
    for step in field(data, "steps", place):
        number = field(step, "step", place)
        where = f"{place}, step {number}"
        record = usable(f"{NAME}-{field(data, 'episode_id', place)}-{number}", partial(step_of, data, step, split, where, tuple(past)))
        past.append(step.get("low_level_instruction") or (describe(record["gt"]["action"]) if isinstance(record, dict) else ""))
        yield record


def step_of(data: Any, step: Any, split: str, place: str, past: tuple[str, ...]) -> Row:
    action, off = to_action(step, place)
    name, device, task = f"{NAME}-{data['episode_id']}", field(data, "device_info", place), field(data, "task_info", place)
    return step_row(
        id=f"{name}-{step['step']}",
        task=NAME,
        image=f"screenshots/{field(step, 'screenshot', place)}",
        goal=field(task, "instruction", place),
        action=action,
        space=SPACE,
        trajectory=name,
        step=step["step"],
        length=field(data, "step_length", place),
        history=past,
        meta={
            "split": split,
            "episode": data["episode_id"],
            "category": task.get("category"),
            "device": device.get("device_name"),
            "size": [field(device, "w", place), field(device, "h", place)],
            "scroll": "finger",
            "box_misses_point": off,
        },
    )


def to_action(step: Any, place: str) -> tuple[dict[str, Any], bool]:
    """(canonical action, whether the element's box was left out since the point misses it)."""
    kind, info = kind_of(field(step, "action", place), ACTIONS, place), field(step, "info", place)
    if kind in ("click", "long_press"):
        if isinstance(info, str):
            return {"action": kind_of(info, KEYS, place)}, False
        return pointing(kind, xy(info, 1, place)[0], element_box(step, place))
    if kind == "scroll":
        (x1, y1), (x2, y2) = xy(info, 2, place)
        # The authors' rule: level only where it moves further across than along.
        return {"action": "scroll", "direction": swipe(x2 - x1, y2 - y1)}, False
    if kind == "input_text":
        if not isinstance(info, str):
            raise RowError("bad_type", f"{place}: 'info' of typed text is {str(info)[:60]}")
        return {"action": kind, "text": info}, False
    return {"action": kind}, False


def xy(info: Any, count: int, place: str) -> list[list[float]]:
    """The first `count` points of `info`, a list of [x, y]."""
    if not isinstance(info, list) or len(info) < count:
        raise RowError("bad_type", f"{place}: 'info' is {str(info)[:60]}; expected {count} point(s) as [[x, y], ...]")
    return [convert_point(point, frame="norm1000", axis="xyxy", target="norm1000") for point in info[:count]]


def element_box(step: Any, place: str) -> list[float] | None:
    box = step.get("sam2_bbox")
    if not box:
        return None
    return convert_box(box, frame="norm1000", axis="xyxy", target="norm1000", place=f"{place}, sam2_bbox")


DATASET = Dataset(folder=Path(__file__).resolve().parent, rows=rows, splits=("train", "test"))

if __name__ == "__main__":
    main(DATASET)
