"""Spatial relations with written, checkable thoughts, for Faithful GRPO (arXiv:2604.08476).

A coloured and a grey shape fill different quarters of the picture; the question is whether the first is left of, right of,
above or below the second, along an axis on which their quarters differ. The thought names both boxes and the relation that holds
(`metrics.spatial` has the language and the rules). Answers are exact in every split, thoughts in every split but `sft`: there, most
of the thoughts about three of the four relations are unfaithful, so that a fine-tuned model has habits to lose, as the paper's has,
and habits that also show in its most likely answers. `meta.thought` says what is wrong with a thought:

- `box` (three in four where the question says "above" or "below"): the box of the first object is in another quarter, on the axis
  that is not asked about; the conclusion holds;
- `relation` (three in four where it says "right of"): the conclusion is the opposite of what holds, and of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vlmrl.extras.toy.picture import COLORS, FRAME, GREY, Box, Item, Thing, norm1000, paint
from vlmrl.extras.toy.tasks import SHAPES, Split
from vlmrl.rng import key

TASK = "toy_spatial"
RELATIONS = ("left of", "right of", "above", "below")
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
QUARTER = 50
"""Side of a quarter and of what fills it, in pixels."""
HABIT = {"above": "box", "below": "box", "right of": "relation"}
"""Relation that is asked about -> what is wrong with three in four such thoughts of the split `sft`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpatialScene:
    """Two things and the relation that is asked about."""

    first: Thing
    second: Thing
    relation: str

    @property
    def holds(self) -> bool:
        return self.true_relation == self.relation

    @property
    def true_relation(self) -> str:
        """The relation that holds on the axis that is asked about."""
        axis = 0 if self.relation in ("left of", "right of") else 1
        before = self.first.box[axis] + self.first.box[axis + 2] < self.second.box[axis] + self.second.box[axis + 2]
        return (("left of", "right of") if axis == 0 else ("above", "below"))[0 if before else 1]


def make_scene(seed: int, split: Split, index: int) -> SpatialScene:
    """The scene at these coordinates."""

    def draw(n: int, *names: int | str) -> int:
        return key(seed, "toy-image", "spatial", split, index, *names) % n

    quarters = [0, 1, 2, 3]
    chosen = [quarters.pop(draw(len(quarters), "quarter", i)) for i in range(2)]
    things: list[Thing] = []
    for i, quarter in enumerate(chosen):
        x, y = QUARTER * (quarter % 2), QUARTER * (quarter // 2)
        color = list(COLORS)[draw(len(COLORS), "color")] if i == 0 else GREY
        things.append(Thing(color=color, shape=SHAPES[draw(len(SHAPES), "shape", i)], box=(x, y, x + QUARTER, y + QUARTER)))
    axes = [axis for axis, differs in ((0, chosen[0] % 2 != chosen[1] % 2), (1, chosen[0] // 2 != chosen[1] // 2)) if differs]
    axis = axes[draw(len(axes), "axis")]
    return SpatialScene(first=things[0], second=things[1], relation=RELATIONS[2 * axis + draw(2, "relation")])


def question(scene: SpatialScene) -> str:
    return f"Is the {scene.first.name} {scene.relation} the {scene.second.name}?"


def thought(first: tuple[str, Box], second: tuple[str, Box], relation: str) -> str:
    """Both boxes (given in pixels), then the relation of the first to the second."""
    placed = [f"The {name} is at <bbox>[{','.join(map(str, norm1000(box)))}]</bbox>." for name, box in (first, second)]
    return f"{placed[0]} {placed[1]} So the {first[0]} is {relation} the {second[0]}."


def _moved(box: Box, axis: int) -> Box:
    """The box in the neighbouring quarter along an axis: disjoint from where it was."""
    shift = QUARTER if box[axis] < QUARTER else -QUARTER
    x1, y1, x2, y2 = (value + (shift if i % 2 == axis else 0) for i, value in enumerate(box))
    return x1, y1, x2, y2


def _thought(seed: int, scene: SpatialScene, split: Split, index: int) -> tuple[str, str]:
    """(what is wrong with it: `sound`, `box` or `relation`; the thought)."""
    boxes, relation, kind = [scene.first.box, scene.second.box], scene.true_relation, "sound"
    chance = key(seed, "toy-image", "spatial", split, index, "flaw") % 4
    if split == "sft" and chance > 0:
        kind = HABIT.get(scene.relation, "sound")
    if kind == "box":
        boxes[0] = _moved(boxes[0], 1 if relation in ("left of", "right of") else 0)
    elif kind == "relation":
        relation = OPPOSITE[relation]
    return kind, thought((scene.first.name, boxes[0]), (scene.second.name, boxes[1]), relation)


def items(seed: int, split: Split, index: int) -> list[Item]:
    """The one row at these coordinates, with its picture."""
    scene = make_scene(seed, split, index)
    kind, text = _thought(seed, scene, split, index)
    things = [scene.first, scene.second]
    row: dict[str, Any] = {
        "id": f"toy-spatial-{split}-{index:06d}",
        "task": TASK,
        "answer_type": "exact_text",
        "data_type": "image",
        "image": f"images/{split}/{index:06d}.png",
        "prompt": question(scene),
        "answer": "yes" if scene.holds else "no",
        "gt": {
            "relation": [scene.first.name, scene.relation, scene.second.name],
            "objects": {thing.name: norm1000(thing.box) for thing in things},
            "boxes": [norm1000(thing.box) for thing in things],
        },
        "thought": text,
        "source": "toy",
        "meta": {"frame": FRAME, "thought": kind, "objects": [thing.as_json() for thing in things]},
    }
    return [Item(row=row, pixels=paint(things, seed, "spatial", split, index))]


def corpus() -> Iterator[str]:
    """Text in which every word of questions, thoughts and answers occurs, for the tokenizer."""
    for index in range(96):
        row = items(0, "train", index)[0].row
        yield row["prompt"]
        yield row["thought"]
        yield f"<think>{row['thought']}</think><answer>{row['answer']}</answer>"
        yield f"<think>\n\n</think><answer>{row['answer']}</answer>"
    for color in (*COLORS, GREY):
        for shape in SHAPES:
            for relation in RELATIONS:
                yield f"Is the {color} {shape} {relation} the {GREY} {shape}?"
