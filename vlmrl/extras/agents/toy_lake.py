"""Rows of the environment `toy_lake`: demonstrations on practised layouts, and tasks on practised and held-out ones.

The splits of `tasks.LOOSE` are demonstrations, a row for each move: the lake, a thought, and the move, as
`history: {screens: 1, actions: false}` shows them. Four of five demonstrators head straight for the goal, think of where they and the goal
are, and fall where a hole is in the way. One of `LOOKING` thinks of the holes as well, and steps into none. Which of the two is better no
row says. The other splits are tasks: half of those of the validation and test splits have layouts that no demonstration and no episode of
training has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vlmrl.extras.agents.lake import MOVES, Lake, draw_lake, walk
from vlmrl.extras.agents.worlds.toy_lake import LAYOUTS, TASK
from vlmrl.extras.toy.kinds import PictureKind
from vlmrl.extras.toy.picture import Item
from vlmrl.extras.toy.tasks import LOOSE, Split

SIZE, HOLES, FEWEST = 4, 6, 3
"""Those of the environment's defaults."""
LOOKING = 5
"""One of so many demonstrators looks where they step."""


def thought(lake: Lake, *, looks: bool) -> str:
    """What somebody thinks before a move: where the goal is from here, and, if they look, which moves lead into a hole."""
    right, down = (goal - own for goal, own in zip(lake.goal, lake.player, strict=True))
    parts = [f"{('left', 'right')[right > 0]} {abs(right)}"] if right else []
    parts += [f"{('up', 'down')[down > 0]} {abs(down)}"] if down else []
    where = f"goal {' '.join(parts)}"
    return f"{where}, holes {' '.join(lake.danger()) or 'none'}" if looks else where


def items(seed: int, split: Split, index: int) -> list[Item]:
    """The rows at these coordinates: of the loose splits the moves of an episode, of the others a task with the lake of its name."""
    name = f"toy-lake-{split}-{index:06d}"
    row: dict[str, Any] = {
        "task": "toy_lake",
        "answer_type": "exact_text",
        "data_type": "image",
        "prompt": TASK,
        "gt": {},
        "source": "toy",
    }
    held_out = split not in (*LOOSE, "train") and index % 2 == 1
    start = draw_lake((seed, split, index), size=SIZE, holes=HOLES, fewest=FEWEST, held_out=held_out)
    looks = index % LOOKING == 0
    if split in LOOSE:
        return [
            Item(
                row={
                    **row,
                    "id": f"{name}-{n}",
                    "image": f"images/{split}/{index:06d}-{n}.png",
                    "answer": move,
                    "thought": thought(lake, looks=looks),
                    "meta": {"turn": n},
                },
                pixels=lake.paint(),
            )
            for n, (lake, move) in enumerate(walk(start, (seed, split, index), looks=looks))
        ]
    way, layouts = start.solution() or [], LAYOUTS[held_out]
    own = {
        "id": name,
        "image": f"images/{split}/{index:06d}.png",
        "answer": way[0],
        "meta": {"environment": {"layouts": layouts}, "category": layouts, "moves": len(way)},
    }
    return [Item(row={**row, **own}, pixels=start.paint())]


def corpus() -> Iterator[str]:
    """Text in which every word of questions, thoughts and answers occurs, for the tokenizer."""
    for n in range(64):
        lake = draw_lake(("corpus", n), size=SIZE, holes=HOLES, fewest=FEWEST)
        yield TASK
        for move in MOVES:
            yield f"<think>{thought(lake, looks=True)}</think><answer>{move}</answer>"
            yield f"<think>\n\n</think><answer>{move}</answer>"
            yield f"<answer>{move}</answer>"


LAKE = PictureKind(items=items, corpus=corpus, answer_types=("exact_text",))
"""`lake` of `toy.kinds.PICTURES`."""
