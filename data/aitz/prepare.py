"""AITZ (Android in the Zoo, arXiv:2403.02713) to rows. Layout of the release: `{train,test}/{domain}/{episode}/{episode}.json`.

Each file is a list of steps. Points are (y, x) in 0 to 1; -1 where the action has none. A gesture (type 4) is a tap where touch and
lift are at most 0.04 apart, else a swipe whose direction is where the finger goes (the rules of the authors' own code).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from vlmrl.answers.coordinates import convert_point
from vlmrl.errors import RowError
from vlmrl.extras.importers.prepare.gui_rows import action_space, describe, field, kind_of, pointing, step_row, swipe, usable
from vlmrl.extras.importers.prepare.prepare import Dataset, Row, Skipped, main, official, read_json

NAME = "aitz"
GESTURE = "gesture"
ACTIONS = {
    0: "scroll down",
    1: "scroll up",
    3: "input_text",
    4: GESTURE,
    5: "navigate_back",
    6: "navigate_home",
    7: "enter",
    8: "scroll left",
    9: "scroll right",
    10: "complete",
    11: "impossible",
}
"""`result_action_type`. 0, 1, 8 and 9 are not in the release, but in conversions of it that have already split gestures."""
SPACE = action_space(("click", "scroll", "input_text", "navigate_back", "navigate_home", "enter", "complete", "impossible"), moves="finger")
TAP = 0.04
"""Most that a tap may move, L2 in shares of both sides."""
VERTICAL = 0.9
"""A swipe is vertical where it moves at least this share of its horizontal move."""


def rows(root: Path, split: str) -> Iterator[Row | Skipped]:
    """One row per step, in the order of domain, episode and step.

    Raises:
        DataError: the split is not there, or a file is not JSON.
        RowError: a step is not as described, or has an unknown action.
    """
    for path in sorted(official(root, split).glob("*/*/*.json")):
        yield from episode(read_json(path), split, path.relative_to(root).as_posix())


def episode(steps: Any, split: str, place: str) -> Iterator[Row | Skipped]:
    if not isinstance(steps, list) or not steps:
        raise RowError("bad_type", f"{place}: expected a list of steps")
    past: list[str] = []
    for step in sorted(steps, key=lambda step: field(step, "step_id", place)):
        where = f"{place}, step {step['step_id']}"
        record = usable(f"{NAME}-{field(step, 'episode_id', where)}-{step['step_id']}", partial(step_of, step, split, where, tuple(past)))
        past.append(step.get("coat_action_desc") or (describe(record["gt"]["action"]) if isinstance(record, dict) else ""))
        yield record


def step_of(step: Any, split: str, place: str, past: tuple[str, ...]) -> Row:
    name, action = f"{NAME}-{step['episode_id']}", to_action(step, place)
    return step_row(
        id=f"{name}-{step['step_id']}",
        task=NAME,
        image=f"{split}/{field(step, 'image_path', place)}",
        goal=field(step, "instruction", place),
        action=action,
        space=SPACE,
        trajectory=name,
        step=step["step_id"],
        length=field(step, "episode_length", place),
        history=past,
        thought=step.get("coat_action_think"),
        meta={"split": split, "category": action["action"], "domain": place.split("/")[1], "scroll": "finger"},
    )


def to_action(step: Any, place: str) -> dict[str, Any]:
    """The canonical action of a step, with the point as [x, y] in 0 to 1000."""
    kind = kind_of(field(step, "result_action_type", place), ACTIONS, place)
    if kind == GESTURE:
        touch, lift = (yx(field(step, key, place), f"{place}, {key}") for key in ("result_touch_yx", "result_lift_yx"))
        down, right = lift[0] - touch[0], lift[1] - touch[1]
        if round(math.hypot(down, right), 9) <= TAP:
            return pointing("click", convert_point(touch, frame="norm1", axis="yxyx", target="norm1000"))[0]
        return {"action": "scroll", "direction": swipe(right, down, tie=VERTICAL)}
    if kind.startswith("scroll "):
        return {"action": "scroll", "direction": kind.removeprefix("scroll ")}
    if kind == "input_text":
        return {"action": kind, "text": field(step, "result_action_text", place)}
    return {"action": kind}


def yx(value: Any, place: str) -> list[float]:
    """A pair that the release keeps as the text `[y, x]`."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RowError("bad_value", f"{place}: {value[:60]!r} is not '[y, x]'") from error
    if not isinstance(value, list) or len(value) != 2 or not all(type(v) in (int, float) for v in value):
        raise RowError("bad_type", f"{place}: {str(value)[:60]} is not [y, x]")
    return value


DATASET = Dataset(folder=Path(__file__).resolve().parent, rows=rows, splits=("train", "test"))

if __name__ == "__main__":
    main(DATASET)
