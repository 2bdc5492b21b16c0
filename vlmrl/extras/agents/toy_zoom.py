"""Striped pictures that must be looked at more closely (`agents.stripes`), for tools on single-turn rows: environment `image_tools`.

Rows of RL and of evaluation are the question, its picture and its answer. The splits of `tasks.LOOSE` teach the two turns of an episode
instead, each as a row of its own, as `history: {screens: 1, actions: false}` shows them: which quarter to look at, and what it shows. There
the look is careless: every second one goes to a quarter drawn at random, so that a model that learnt from them can call and can read, and
RL has something to repair.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from vlmrl.extras.agents.stripes import BOXES, QUARTER, WAYS, Stripes, make_stripes, paint_stripes, zoom_call
from vlmrl.extras.agents.tools import Limits, asked, boxed
from vlmrl.extras.toy.kinds import PictureKind
from vlmrl.extras.toy.picture import COLORS, Item
from vlmrl.extras.toy.tasks import LOOSE, Split
from vlmrl.rng import key

TASK = "toy_zoom"
LIMITS = Limits()
"""Those of the environment's defaults: its sentences stand in the rows."""


def question(color: str) -> str:
    """As the environment asks it, with `tools: [zoom]`."""
    return asked(Stripes(color=color, quarter=0, ways=WAYS, level=0).question, {"zoom": 1}, LIMITS)


def items(seed: int, split: Split, index: int) -> list[Item]:
    """The row at these coordinates; of the loose splits the two turns of an episode."""
    shown = make_stripes(seed, split, index)
    pixels, name = paint_stripes(shown), f"toy-zoom-{split}-{index:06d}"
    row: dict[str, Any] = {"task": TASK, "answer_type": "exact_text", "data_type": "image", "gt": {}, "source": "toy"}
    if split not in LOOSE:
        own = {"id": name, "image": f"images/{split}/{index:06d}.png", "prompt": shown.question, "answer": shown.answer}
        return [Item(row={**row, **own, "meta": {"calls": [shown.call]}}, pixels=pixels)]
    careless = key(seed, "toy-zoom", split, index, "careless")
    quarter = careless // 2 % 4 if careless % 2 else shown.quarter
    x, y = QUARTER * (quarter % 2), QUARTER * (quarter // 2)
    closer = np.ascontiguousarray(pixels[y : y + QUARTER, x : x + QUARTER])
    turns = (
        (pixels, question(shown.color), zoom_call(quarter)),
        (closer, f"{boxed(BOXES[quarter])} {question(shown.color)}", shown.answer),
    )
    return [
        Item(
            row={
                **row,
                "id": f"{name}-{turn}",
                "image": f"images/{split}/{index:06d}-{turn}.png",
                "prompt": prompt,
                "answer": answer,
                "meta": {"turn": turn},
            },
            pixels=picture,
        )
        for turn, (picture, prompt, answer) in enumerate(turns)
    ]


def corpus() -> Iterator[str]:
    """Text in which every word of questions, observations, calls and answers occurs, for the tokenizer."""
    for _ in range(16):
        for color in COLORS:
            yield question(color)
            yield Stripes(color=color, quarter=0, ways=WAYS, level=0).question
        for quarter, box in enumerate(BOXES):
            yield boxed(box)
            yield f"<think>\n\n</think><answer>{zoom_call(quarter)}</answer>"
            yield f"<answer>{zoom_call(quarter)}</answer>"
        for way in WAYS:
            yield f"<think>\n\n</think><answer>{way}</answer>"
            yield f"<answer>{way}</answer>"


ZOOM = PictureKind(items=items, corpus=corpus, answer_types=("exact_text",))
"""`zoom` of `toy.kinds.PICTURES`."""
