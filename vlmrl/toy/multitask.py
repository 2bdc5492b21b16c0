"""Three tasks on pictures whose rewards have three shapes, for G2RPO (arXiv:2604.08539): counting (0 or 1), box grounding (a dense
overlap) and the filling of a bar (a quantity, for a heavy-tailed reward).

Rows take turns by index: `toy_counting`, `toy_boxes`, `toy_bars`. All answers are exact in every split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from vlmrl.rng import key
from vlmrl.toy.picture import FRAME, Item, Thing, paint, rel1000
from vlmrl.toy.tasks import COLORS, GREY, SHAPES, Split

TASKS = ("toy_counting", "toy_boxes", "toy_bars")
MOST = 5
"""Largest count; the smallest is 1."""
CELL = 32
"""Side of a cell of counting, in pixels: 3 x 3 cells."""
QUARTER = 50
SIDES = (25, 30, 35, 40)
"""Widths and heights of the objects of box grounding, in pixels."""
STEP = 5
TRACK = 80
"""Length of the whole bar, in pixels."""


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
    """One to five shapes of one colour among up to three grey ones, each in a cell of its own."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "counting", split, index, *names) % n

    color, asked, grey = list(COLORS)[draw(len(COLORS), "color")], 1 + draw(MOST, "count"), draw(4, "grey")
    cells = list(range(9))
    things: list[Thing] = []
    for i in range(asked + grey):
        cell = cells.pop(draw(len(cells), "cell", i))
        side = 20 + draw(3, "side", i) * 2
        x, y = (1 + CELL * n + draw(CELL - side - 1, axis, i) for axis, n in (("x", cell % 3), ("y", cell // 3)))
        things.append(
            Thing(color=color if i < asked else GREY, shape=SHAPES[draw(len(SHAPES), "shape", i)], box=(x, y, x + side, y + side))
        )
    return f"How many {color} shapes are there?", "number", str(asked), {"count": asked}, things


def _boxes(seed: int, split: Split, index: int) -> _Made:
    """One coloured shape and one or two grey ones, each in a quarter of its own; edges on multiples of 5 pixels."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "boxes", split, index, *names) % n

    quarters = [0, 1, 2, 3]
    things: list[Thing] = []
    for i in range(2 + draw(2, "things")):
        quarter = quarters.pop(draw(len(quarters), "quarter", i))
        width, height = SIDES[draw(len(SIDES), "width", i)], SIDES[draw(len(SIDES), "height", i)]
        x = QUARTER * (quarter % 2) + STEP * draw((QUARTER - width) // STEP + 1, "x", i)
        y = QUARTER * (quarter // 2) + STEP * draw((QUARTER - height) // STEP + 1, "y", i)
        color = list(COLORS)[draw(len(COLORS), "color")] if i == 0 else GREY
        things.append(Thing(color=color, shape=SHAPES[draw(len(SHAPES), "shape", i)], box=(x, y, x + width, y + height)))
    gt = {"boxes": [rel1000(things[0].box)]}
    return f"Where is the {things[0].name}?", "bbox", json.dumps(gt), gt, things


def _bars(seed: int, split: Split, index: int) -> _Made:
    """A grey track of 80 pixels that is filled from the left in twentieths: 5 to 95 percent."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "bars", split, index, *names) % n

    percent = STEP * (1 + draw(19, "percent"))
    x, y, height = 4 + draw(13, "x"), 4 + draw(70, "y"), 14 + draw(9, "height")
    color = list(COLORS)[draw(len(COLORS), "color")]
    things = [
        Thing(color=GREY, shape="square", box=(x, y, x + TRACK, y + height)),
        Thing(color=color, shape="square", box=(x, y, x + TRACK * percent // 100, y + height)),
    ]
    return f"What percentage of the bar is {color}?", "number", str(percent), {"number": percent}, things


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
