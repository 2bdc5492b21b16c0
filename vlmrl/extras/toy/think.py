"""Questions that need a thought and questions that do not, for TON (arXiv:2505.16854).

Easy: one coloured shape; which colour is it? Hard: two groups of shapes, coloured and grey; how many more are there of the first?
The thought of a hard question counts both groups, that of an easy one says what is seen and can be left out. All answers and
thoughts are exact. `difficulty` is `easy` or `hard`; both have the same chance.

In the split `pretrain` one of the two group sizes is asked for instead of the difference (`toy_group`): so the model learns to count,
and knows no way from the picture to the difference but by way of a thought that counts. These rows have the difficulty `hard` and no
thought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from vlmrl.extras.toy.picture import COLORS, FRAME, GREY, Item, Thing, paint
from vlmrl.extras.toy.tasks import SHAPES, Split
from vlmrl.rng import key

TASKS = ("toy_color", "toy_difference", "toy_group")
"""Easy, hard, and the part of a hard one."""
CELL = 32
"""Of 3 x 3 cells, in pixels: one per visual token of a picture of 84 x 84."""
MOST = 4
"""Largest group of coloured shapes; the smallest is 2, and there is always at least one grey shape and one fewer than coloured."""
COLOR_PHRASINGS = ("What color is the shape?", "Which color does the shape have?")


def _cells(draw: Callable[..., int], groups: list[tuple[str, int]]) -> list[Thing]:
    """Shapes of each (colour, number), each in a cell of its own of 3 x 3."""
    cells = list(range(9))
    things: list[Thing] = []
    for color, number in groups:
        for _ in range(number):
            i = len(things)
            cell = cells.pop(draw(len(cells), "cell", i))
            side = 24 + draw(3, "side", i) * 2
            x, y = (1 + CELL * n + draw(CELL - side - 1, axis, i) for axis, n in (("x", cell % 3), ("y", cell // 3)))
            things.append(Thing(color=color, shape=SHAPES[draw(len(SHAPES), "shape", i)], box=(x, y, x + side, y + side)))
    return things


def items(seed: int, split: Split, index: int) -> list[Item]:
    """The one row at these coordinates, with its picture."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "think", split, index, *names) % n

    color = list(COLORS)[draw(len(COLORS), "color")]
    gt: dict[str, Any] = {}
    if draw(2, "difficulty") == 0:
        task, difficulty = TASKS[0], "easy"
        things = _cells(draw, [(color, 1)])
        question, answer, thought = COLOR_PHRASINGS[draw(2, "phrasing")], color, f"There is one {things[0].name}."
    else:
        task, difficulty = TASKS[1], "hard"
        many = 2 + draw(MOST - 1, "many")
        few = 1 + draw(many - 1, "few")
        things = _cells(draw, [(color, many), (GREY, few)])
        question, answer = f"How many more {color} shapes than grey shapes are there?", str(many - few)
        thought, gt = f"There are {many} {color} shapes and {few} grey shapes.", {"count": many - few}
        if split == "pretrain":
            task, asked = TASKS[2], ((color, many), (GREY, few))[draw(2, "part")]
            question, answer, gt = f"How many {asked[0]} shapes are there?", str(asked[1]), {"count": asked[1]}
    row: dict[str, Any] = {
        "id": f"toy-think-{split}-{index:06d}",
        "task": task,
        "answer_type": "exact_text",
        "data_type": "image",
        "image": f"images/{split}/{index:06d}.png",
        "prompt": question,
        "answer": answer,
        "gt": gt,
        "difficulty": difficulty,
        "source": "toy",
        "meta": {"frame": FRAME, "objects": [thing.as_json() for thing in things]},
    }
    if split != "pretrain":
        row["thought"] = thought
    return [Item(row=row, pixels=paint(things, seed, "think", split, index))]


def corpus() -> Iterator[str]:
    """Text in which every word of questions, thoughts and answers occurs, for the tokenizer."""
    for index in range(128):
        for split in ("sft", "pretrain"):
            row = items(0, split, index)[0].row
            yield row["prompt"]
            yield f"<think>{row.get('thought', '')}</think><answer>{row['answer']}</answer>"
            yield f"<think>\n\n</think><answer>{row['answer']}</answer>"
    for color in (*COLORS, GREY):
        for shape in SHAPES:
            yield f"There is one {color} {shape}."
        yield f"How many more {color} shapes than grey shapes are there?"
        yield f"How many {color} shapes are there?"
