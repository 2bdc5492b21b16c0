"""Rules that judge a thought in the language of the toy world's spatial questions: consistent with the answer, true to the boxes.

    The red square is at <bbox>[100,250,350,500]</bbox>. The grey circle is at <bbox>[600,100,850,400]</bbox>.
    So the red square is left of the grey circle.

Coordinates are 0 to 1000 along each side (frame `norm1000`). Rules stand in for the judges of FGRPO (arXiv:2604.08476) where
thoughts are in this language; they know nothing of free text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vlmrl.metrics.boxes import Box, centre, iou, valid

OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
"""Relation -> the one that holds with the two objects swapped, or with the answer 'no'."""

_CAP = 4096
_NAME = r"([a-z]{1,20} [a-z]{1,20})"
_PLACED = re.compile(rf"the {_NAME} is at <bbox>\[(\d{{1,4}}),\s?(\d{{1,4}}),\s?(\d{{1,4}}),\s?(\d{{1,4}})\]</bbox>", re.IGNORECASE)
_CONCLUDED = re.compile(rf"so the {_NAME} is ({'|'.join(OPPOSITE)}) the {_NAME}\.", re.IGNORECASE)
_ANY_BOX = re.compile(r"<bbox>", re.IGNORECASE)

Relation = tuple[str, str, str]
"""(first name, relation, second name): the first is `left of` the second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpatialThought:
    """What a thought says, in lower case."""

    placed: tuple[tuple[str, Box], ...]
    """Names with their boxes, in order."""
    boxes: int
    """How many boxes it opens, readable or not."""
    conclusions: tuple[Relation, ...]
    """What follows from 'So', in order."""


def read_thought(text: str) -> SpatialThought:
    """Take a thought apart. Never raises; what is not in the language is not seen. Linear in the length of the text."""
    tail = " ".join(text[-_CAP:].lower().split())
    placed = [(m[1], (float(m[2]), float(m[3]), float(m[4]), float(m[5]))) for m in _PLACED.finditer(tail)]
    concluded = [(m[1], m[2], m[3]) for m in _CONCLUDED.finditer(tail)]
    return SpatialThought(placed=tuple(placed), boxes=len(_ANY_BOX.findall(tail)), conclusions=tuple(concluded))


def implied_answer(thought: SpatialThought, asked: Relation) -> str | None:
    """Find the answer, `yes` or `no`, that every conclusion of the thought gives to what is asked; None where it says nothing, something
    else, or two different things."""
    answers: set[str | None] = set()
    for first, relation, second in thought.conclusions:
        # the two objects the other way round: the same statement with the opposite relation
        if (first, second) == (asked[2], asked[0]):
            first, relation, second = second, OPPOSITE[relation], first
        same = (first, second) == (asked[0], asked[2])
        answers.add({asked[1]: "yes", OPPOSITE[asked[1]]: "no"}.get(relation) if same else None)
    return answers.pop() if len(answers) == 1 else None


def holds(relation: str, first: Box, second: Box) -> bool:
    """Check whether the relation holds between the centres of two boxes.

    Raises:
        KeyError: the relation is unknown.
    """
    axis, sign = {"left of": (0, -1), "right of": (0, 1), "above": (1, -1), "below": (1, 1)}[relation]
    return (centre(first)[axis] - centre(second)[axis]) * sign > 0


def is_consistent(thought: SpatialThought, asked: Relation, answer: str) -> bool:
    """Check whether the thought's conclusion is the answer (`yes` or `no`), and the boxes that it gives do not contradict its conclusion.

    What the picture shows plays no part: a wrong but coherent thought is consistent. Without a conclusion it is not.
    """
    if implied_answer(thought, asked) != answer.strip().lower():
        return False
    places = dict(thought.placed)
    return all(holds(rel, places[a], places[b]) for a, rel, b in thought.conclusions if a in places and b in places)


def grounded_share(thought: SpatialThought, gold: Mapping[str, Box], *, threshold: float) -> float:
    """Count objects whose box in the thought has an IoU of at least `threshold` with the true one, over the larger number of boxes and
    objects, in [0, 1]. Boxes that cannot be read, and repeated ones, count in the denominator only.

    Raises:
        ValueError: there is no true box.
    """
    if not gold:
        raise ValueError("grounded_share: no true boxes")
    right = sum(any(name == n and valid(b) and iou(b, box) >= threshold for n, b in thought.placed) for name, box in gold.items())
    return right / max(thought.boxes, len(gold))


def as_relation(value: Sequence[str]) -> Relation:
    """Read (first, relation, second) of a row's `gt.relation`, in lower case.

    Raises:
        ValueError: not three texts, or an unknown relation.
    """
    if len(value) != 3 or not all(isinstance(v, str) for v in value) or value[1].lower() not in OPPOSITE:
        raise ValueError(f"gt.relation is {list(value)}; it must be [first, relation, second] with a relation of {', '.join(OPPOSITE)}")
    return value[0].lower(), value[1].lower(), value[2].lower()
