"""Striped pictures (`agents.stripes`) in one turn: the whole is asked about, and rows say where to look, for a teacher that sees a crop.

A picture of 112 x 112 pixels has a pixel for each stripe, and so has a quarter alone of 56 x 56: what can be read is the same, but in the
whole three grey quarters with stripes of their own stand beside the coloured one. Spots of noise make each picture one of its own. The
splits of `tasks.LOOSE` are quarters alone, and one answer of five is wrong, so that a model that learnt from them can read, but is unsure,
and has never seen a whole picture. `validation` holds the questions of `test` with the quarter in the place of the whole, which is what a
teacher sees of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from vlmrl.extras.agents.stripes import BOXES, QUARTER, SIDE, WAYS, Stripes, make_stripes, paint_stripes
from vlmrl.extras.toy.kinds import PictureKind
from vlmrl.extras.toy.picture import COLORS, NOISE, Item
from vlmrl.extras.toy.tasks import LOOSE, Split
from vlmrl.rng import generator, key

TASK = "toy_stripes"
SPOT = 8
"""Side of a spot, in pixels: two stripes."""


def items(seed: int, split: Split, index: int) -> list[Item]:
    """The row at these coordinates."""
    drawn = "test" if split == "validation" else split
    shown = make_stripes(seed, drawn, index)
    spots = generator(seed, "toy-stripes-spots", drawn, index).integers(-NOISE, NOISE + 1, size=(SIDE // SPOT, SIDE // SPOT, 1))
    noise = spots.repeat(SPOT, axis=0).repeat(SPOT, axis=1)
    pixels = np.clip(paint_stripes(shown) + noise, 0, 255).astype(np.uint8)
    box, answer = BOXES[shown.quarter], shown.answer
    meta: dict[str, Any] = {"box": [side / 1000 for side in box]}
    if split in LOOSE and key(seed, "toy-stripes-careless", split, index) % 5 == 0:
        answer = WAYS[1 - WAYS.index(answer)]
    if split in LOOSE or split == "validation":
        x, y = QUARTER * (shown.quarter % 2), QUARTER * (shown.quarter // 2)
        pixels, meta = np.ascontiguousarray(pixels[y : y + QUARTER, x : x + QUARTER]), {}
    row: dict[str, Any] = {
        "id": f"toy-stripes-{split}-{index:06d}",
        "task": TASK,
        "answer_type": "exact_text",
        "data_type": "image",
        "image": f"images/{split}/{index:06d}.png",
        "prompt": shown.question,
        "answer": answer,
        "gt": {},
        "source": "toy",
        "meta": meta,
    }
    return [Item(row=row, pixels=pixels)]


def corpus() -> Iterator[str]:
    """Text in which every word of questions and answers occurs, for the tokenizer."""
    for _ in range(16):
        for color in COLORS:
            yield Stripes(color=color, quarter=0, ways=WAYS, level=0).question
        for way in WAYS:
            yield f"<think>\n\n</think><answer>{way}</answer>"
            yield f"<answer>{way}</answer>"


STRIPES = PictureKind(items=items, corpus=corpus, answer_types=("exact_text",))
"""`stripes` of `toy.kinds.PICTURES`."""
