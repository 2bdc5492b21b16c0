"""Three tasks on pictures whose rewards have three shapes, for G2RPO (arXiv:2604.08539): counting (0 or 1), box grounding (a dense
overlap) and the filling of a bar (a quantity, for a heavy-tailed reward).

Rows take turns by index: `toy_counting`, `toy_boxes`, `toy_bars`. Answers are exact, but for the splits in `tasks.LOOSE`: there half
of them err to one side (one too many, a box a cell too wide or too high, ten percent too much), so that a model that learnt from
them sees but is unsure, and RL has something to repair. Everything stands in quarters or in cells of a 4 x 4 grid, which is what the
visual tokens of a picture of 56 x 56 can tell apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vlmrl.extras.toy.picture import COLORS, FRAME, GREY, Item, Thing, norm1000, paint
from vlmrl.extras.toy.tasks import LOOSE, SHAPES, Split
from vlmrl.rng import key

TASKS = ("toy_counting", "toy_boxes", "toy_bars")
MOST = 4
"""Largest count; the smallest is 1."""
QUARTER = 50
CELL = 25
"""Side of a cell of box grounding, in pixels; objects are one or two cells wide and high."""
TENTH = 8
"""A tenth of the bar, in pixels."""


def items(seed: int, split: Split, index: int) -> list[Item]:
    """The one row at these coordinates, with its picture."""
    task = TASKS[index % len(TASKS)]
    question, answer_type, answer, gt, things = {"toy_counting": _counting, "toy_boxes": _boxes, "toy_bars": _bars}[task](
        seed, split, index
    )
    row: dict[str, Any] = {
        "id": f"{task.replace('_', '-')}-{split}-{index:06d}",
        "task": task,
        "answer_type": answer_type,
        "data_type": "image",
        "image": f"images/{split}/{index:06d}.png",
        "prompt": question,
        "answer": answer,
        "gt": gt,
        "source": "toy",
        "meta": {"frame": FRAME, "objects": [thing.as_json() for thing in things]},
    }
    return [Item(row=row, pixels=paint(things, seed, "multitask", split, index))]


_Made = tuple[str, str, str, dict[str, Any], list[Thing]]
"""Question, answer type, answer, ground truth, what is drawn."""


def _counting(seed: int, split: Split, index: int) -> _Made:
    """One to four shapes of one colour, each in a quarter of its own; in some of the other quarters there are grey ones."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "counting", split, index, *names) % n

    color, asked = list(COLORS)[draw(len(COLORS), "color")], 1 + draw(MOST, "count")
    grey = draw(MOST - asked + 1, "grey")
    quarters = [0, 1, 2, 3]
    things: list[Thing] = []
    for i in range(asked + grey):
        quarter = quarters.pop(draw(len(quarters), "quarter", i))
        side = 30 + draw(6, "side", i) * 2
        x, y = (1 + QUARTER * n + draw(QUARTER - side - 1, axis, i) for axis, n in (("x", quarter % 2), ("y", quarter // 2)))
        things.append(
            Thing(color=color if i < asked else GREY, shape=SHAPES[draw(len(SHAPES), "shape", i)], box=(x, y, x + side, y + side))
        )
    told = asked + (split in LOOSE and asked < MOST and draw(2, "loose"))
    return f"How many {color} shapes are there?", "number", str(told), {"count": told}, things


def _boxes(seed: int, split: Split, index: int) -> _Made:
    """One coloured shape on cells of a 4 x 4 grid, one or two of them wide and high."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "boxes", split, index, *names) % n

    width, height = 1 + draw(2, "width"), 1 + draw(2, "height")
    x, y = draw(5 - width, "x"), draw(5 - height, "y")
    box = (x * CELL, y * CELL, (x + width) * CELL, (y + height) * CELL)
    thing = Thing(color=list(COLORS)[draw(len(COLORS), "color")], shape=SHAPES[draw(len(SHAPES), "shape")], box=box)
    if split in LOOSE:
        right, down = (CELL * draw(2, name) if edge < 4 * CELL else 0 for name, edge in (("right", box[2]), ("down", box[3])))
        box = (box[0], box[1], box[2] + right, box[3] + down)
    gt = {"boxes": [norm1000(box)]}
    return f"Where is the {thing.name}?", "bbox", json.dumps(gt), gt, [thing]


def _bars(seed: int, split: Split, index: int) -> _Made:
    """A grey track of 80 pixels that is filled from the left in tenths: 10 to 90 percent."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "bars", split, index, *names) % n

    tenths = 1 + draw(9, "percent")
    x, y, height = 10, 4 + draw(61, "y"), 30
    color = list(COLORS)[draw(len(COLORS), "color")]
    things = [
        Thing(color=GREY, shape="square", box=(x, y, x + 10 * TENTH, y + height)),
        Thing(color=color, shape="square", box=(x, y, x + tenths * TENTH, y + height)),
    ]
    told = 10 * (tenths + (split in LOOSE and tenths < 9 and draw(2, "loose")))
    return f"What percentage of the bar is {color}?", "number", str(told), {"number": told}, things


def corpus() -> Iterator[str]:
    """Text in which every word of questions and answers occurs, for the tokenizer."""
    for index in range(96):
        row = items(0, "sft", index)[0].row
        yield row["prompt"]
        yield f"<think>\n\n</think><answer>{row['answer']}</answer>"
        yield f"<answer>{row['answer']}</answer>"
    for color in COLORS:
        for shape in SHAPES:
            yield f"Where is the {color} {shape}?"
        yield f"How many {color} shapes are there?"
        yield f"What percentage of the bar is {color}?"
