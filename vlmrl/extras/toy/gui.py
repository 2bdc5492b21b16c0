"""Screens with buttons, icons, text fields and a scroll bar, and tasks of two to four steps on them, for curricula of the kind of
CRAFT-GUI (arXiv:2508.11360).

Each index is one trajectory: a goal of two to four different parts, and one row per step with the screen of that step, the actions
so far as text, and the true action. What a part needs is always on the screen of its step and other elements are grey, so the screen
tells the type of the action and where to click; what to type and where to scroll only the text tells. A row of level `low` is told
its step, one of level `high` only the goal. Difficulty goes by the number of steps, and clutter grows with it: `easy` (2 steps, up to
1 grey element), `medium` (3, 1 to 2), `hard` (4, 2 to 3). Coordinates are 0 to 1000 along each side; to click is to tell which quarter
of the screen, which is what the visual tokens of a picture of 56 x 56 can tell apart. Answers are exact, but for clicks in the splits
of `tasks.LOOSE`: along each side every second one is put in the first half, wherever the element stands, so that a model that learnt
from them sees but is unsure, and RL has something to repair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vlmrl.extras.toy.picture import COLORS, FRAME, GREY, Item, Thing, norm1000, paint
from vlmrl.extras.toy.tasks import LOOSE, Split
from vlmrl.rng import key

TASK = "toy_gui"
DIFFICULTIES = {2: "easy", 3: "medium", 4: "hard"}
PARTS = ("press", "open", "type", "scroll")
ICONS = ("circle", "triangle")
WORDS = ("cat", "news", "music", "rain", "taxi", "gold", "train", "hello")
DIRECTIONS = ("up", "down")
QUARTER, HALF = 50, 25
"""Of a screen and of a quarter of it, in pixels; each element has a quarter of its own."""
FIRST = 250
"""The middle of the first half of a side, of 0 to 1000."""
REACH = 41
"""How far elements reach from the left of their quarter, in pixels: the scroll bar at the right of the screen stays free."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subgoal:
    """One part of a goal."""

    kind: str
    what: str
    """Colour of a button; colour and shape of an icon; word to type; direction to scroll."""

    @property
    def text(self) -> str:
        """As it stands in the goal and in the history."""
        return {
            "press": f"press the {self.what} button",
            "open": f"open the {self.what}",
            "type": f"type {self.what}",
            "scroll": f"scroll {self.what}",
        }[self.kind]


def make_goal(seed: int, split: Split, index: int) -> tuple[Subgoal, ...]:
    """Two to four parts of different kinds, in order."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "gui", split, index, *names) % n

    kinds = list(PARTS)
    parts: list[Subgoal] = []
    for i in range(2 + draw(3, "steps")):
        kind = kinds.pop(draw(len(kinds), "kind", i))
        color = list(COLORS)[draw(len(COLORS), "color", i)]
        what = {
            "press": color,
            "open": f"{color} {ICONS[draw(len(ICONS), 'icon', i)]}",
            "type": WORDS[draw(len(WORDS), "word", i)],
            "scroll": DIRECTIONS[draw(len(DIRECTIONS), "direction", i)],
        }[kind]
        parts.append(Subgoal(kind=kind, what=what))
    return tuple(parts)


def make_screen(seed: int, split: Split, index: int, step: int, part: Subgoal, clutter: int) -> list[Thing]:
    """The elements of a screen: first what the part needs, then grey ones, each in a quarter of its own; a scroll bar where one scrolls."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "gui", split, index, "screen", step, *names) % n

    quarters = [0, 1, 2, 3]

    def element(i: int, kind: str, color: str, shape: str) -> Thing:
        quarter = quarters.pop(draw(len(quarters), "quarter", i))
        width, height = {"press": (40, 36), "open": (40, 40), "type": (40, 24)}[kind]
        # elements fill most of their quarter, its middle is well within them, and the scroll bar is beside them
        x, y = (
            QUARTER * place + low + draw(high - low + 1, axis, i)
            for axis, place, low, high in (
                ("x", quarter % 2, max(1, HALF + 4 - width), min(HALF - 4, REACH - width)),
                ("y", quarter // 2, max(1, HALF + 4 - height), min(HALF - 4, QUARTER - 1 - height)),
            )
        )
        return Thing(color=color, shape=shape, box=(x, y, x + width, y + height))

    things: list[Thing] = []
    if part.kind == "press":
        things.append(element(0, "press", part.what, "square"))
    elif part.kind == "open":
        things.append(element(0, "open", *part.what.split()))
    elif part.kind == "type":
        things.append(element(0, "type", "white", "frame"))
    else:
        top = 4 + draw(50, "bar")
        things.append(Thing(color="white", shape="square", box=(92, top, 98, top + 40)))
    for i in range(1, clutter + 1):
        kind = ("press", "open")[draw(2, "other", i)]
        shape = "square" if kind == "press" else ICONS[draw(len(ICONS), "shape", i)]
        things.append(element(i, kind, GREY, shape))
    return things


def true_action(part: Subgoal, target: Thing) -> dict[str, Any]:
    """The action as it is answered: a click is at the middle of the quarter that the element stands in, which is within the element."""
    if part.kind in ("press", "open"):
        return {"action": "click", "coordinate": [FIRST + 500 * (target.box[axis] >= QUARTER) for axis in (0, 1)]}
    if part.kind == "type":
        return {"action": "input_text", "text": part.what}
    return {"action": "scroll", "direction": part.what}


def goal_text(goal: tuple[Subgoal, ...]) -> str:
    return ", then ".join(part.text for part in goal)


def prompt(goal: tuple[Subgoal, ...], step: int, level: str) -> str:
    """Goal and history; for the level `low` also the step."""
    done = ", ".join(part.text for part in goal[:step]) or "nothing"
    now = f" Now: {goal[step].text}." if level == "low" else ""
    return f"Task: {goal_text(goal)}. Done: {done}.{now}"


def items(seed: int, split: Split, index: int) -> list[Item]:
    """The rows of one trajectory, in order, each with its screen."""
    goal = make_goal(seed, split, index)
    level = ("low", "high")[key(seed, "toy-image", "gui", split, index, "level") % 2]
    clutter = len(goal) - 2 + key(seed, "toy-image", "gui", split, index, "clutter") % 2
    name = f"toy-gui-{split}-{index:06d}"
    out: list[Item] = []
    for step, part in enumerate(goal):
        things = make_screen(seed, split, index, step, part, clutter)
        action = true_action(part, things[0])
        box = {"box": norm1000(things[0].box)} if part.kind in ("press", "open") else {}
        if box and split in LOOSE:
            careless = [key(seed, "toy-image", "gui", split, index, "loose", step, axis) % 2 for axis in (0, 1)]
            action["coordinate"] = [FIRST if slip else true for slip, true in zip(careless, action["coordinate"], strict=True)]
            box = {}  # the point alone says what counts
        row: dict[str, Any] = {
            "id": f"{name}-{step}",
            "task": TASK,
            "answer_type": "action",
            "data_type": "gui",
            "image": f"images/{split}/{index:06d}-{step}.png",
            "prompt": prompt(goal, step, level),
            "answer": json.dumps(action),
            "gt": {"action": action | box},
            "trajectory": {
                "id": name,
                "step": step,
                "length": len(goal),
                "goal": goal_text(goal),
                "history": [done.text for done in goal[:step]],
            },
            "difficulty": DIFFICULTIES[len(goal)],
            "source": "toy",
            "meta": {"frame": FRAME, "level": level, "clutter": clutter, "objects": [thing.as_json() for thing in things]},
        }
        out.append(Item(row=row, pixels=paint(things, seed, "gui", split, index, step)))
    return out


def corpus() -> Iterator[str]:
    """Text in which every word of questions and answers occurs, for the tokenizer."""
    for index in range(64):
        for item in items(0, "sft", index):
            yield item.row["prompt"]
            yield f"<think>\n\n</think><answer>{item.row['answer']}</answer>"
            yield f"<answer>{item.row['answer']}</answer>"
    for word in WORDS:
        yield from (f"type {word}", f'{{"action": "input_text", "text": "{word}"}}') * 4
    for direction in DIRECTIONS:
        yield from (f"scroll {direction}", f'{{"action": "scroll", "direction": "{direction}"}}') * 4
