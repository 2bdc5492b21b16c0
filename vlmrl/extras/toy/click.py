"""Elements to click on a screen, small and large, for GUI grounding (UI-R1, arXiv:2503.21620; GUI-G1, arXiv:2505.15810).

A screen shows one coloured element, which its row names, and up to two grey ones. Small elements stand in one quarter of the screen,
large ones (every second index) reach over two of them, side by side or one above the other. The answer is the middle, in 0 to 1000: of a
small element that of its quarter, which is what the visual tokens of a picture of 56 x 56 can tell apart. A click in the middle of either
quarter hits a large element too, but at its edge. Answers are exact, but for the splits in `tasks.LOOSE`: there each axis is put in the
first half in half of the cases, wherever the element stands, so that a model that learnt from them sees but is unsure, and RL has something
to repair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vlmrl.extras.toy.picture import COLORS, FRAME, GREY, Item, Thing, norm1000, paint
from vlmrl.extras.toy.tasks import LOOSE, SHAPES, Split
from vlmrl.rng import key

TASK = "toy_click"
QUARTER = 50
FIRST, MIDDLE = 250, 500
"""The middle of the first half of a side, and of the side, of 0 to 1000."""


def items(seed: int, split: Split, index: int) -> list[Item]:
    """The one row at these coordinates, with its picture."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "click", split, index, *names) % n

    color, shape = list(COLORS)[draw(len(COLORS), "color")], SHAPES[draw(len(SHAPES), "shape")]
    wide = index % 2 and (1, 2)[draw(2, "wide")]
    columns, rows = ((0, 1), (draw(2, "row"),)) if wide == 1 else ((draw(2, "column"),), (0, 1) if wide == 2 else (draw(2, "row"),))
    target = Thing(color=color, shape=shape, box=_box(columns, rows, draw(6, "left"), draw(6, "top")))
    things = [target]
    free = [(x, y) for x in (0, 1) for y in (0, 1) if x not in columns or y not in rows]
    for i in range(draw(3, "grey")):
        x, y = free.pop(draw(len(free), "quarter", i))
        things.append(
            Thing(color=GREY, shape=SHAPES[draw(len(SHAPES), "shape", i)], box=_box((x,), (y,), draw(6, "x", i), draw(6, "y", i)))
        )
    point = [MIDDLE if len(places) == 2 else FIRST + 500 * places[0] for places in (columns, rows)]
    gt: dict[str, Any] = {"boxes": [norm1000(target.box)]}
    if split in LOOSE:
        point = [FIRST if draw(2, "loose", axis) else true for axis, true in enumerate(point)]
        gt = {"points": [point]}  # the point alone says what counts
    row: dict[str, Any] = {
        "id": f"toy-click-{split}-{index:06d}",
        "task": TASK,
        "answer_type": "point",
        "data_type": "gui",
        "image": f"images/{split}/{index:06d}.png",
        "prompt": f"the {target.name}",
        "answer": json.dumps(point),
        "gt": gt,
        "source": "toy",
        "meta": {"frame": FRAME, "category": "large" if wide else "small", "objects": [thing.as_json() for thing in things]},
    }
    return [Item(row=row, pixels=paint(things, seed, "click", split, index))]


def _box(columns: tuple[int, ...], rows: tuple[int, ...], left: int, top: int) -> tuple[int, int, int, int]:
    """A box in these quarters, 2 to 7 pixels from their edges at each side, so that it holds their middles."""
    x1, y1 = QUARTER * columns[0] + 2 + left, QUARTER * rows[0] + 2 + top
    return x1, y1, QUARTER * (columns[-1] + 1) - 9 + left, QUARTER * (rows[-1] + 1) - 9 + top


def corpus() -> Iterator[str]:
    """Text in which every word of questions and answers occurs, for the tokenizer."""
    for index in range(96):
        row = items(0, "sft", index)[0].row
        yield row["prompt"]
        yield f"<think>\n\n</think><answer>{row['answer']}</answer>"
        yield f"<answer>{row['answer']}</answer>"
    for color in COLORS:
        for shape in SHAPES:
            yield f"the {color} {shape}"
    for x in (FIRST, MIDDLE, FIRST + 500):
        for y in (FIRST, MIDDLE, FIRST + 500):
            yield f"<answer>[{x}, {y}]</answer>"
