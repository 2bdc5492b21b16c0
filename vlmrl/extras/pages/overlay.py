"""Marks on the pixels that a model saw: gold and predicted answers as boxes, points, areas and time spans.

Places are in percent of the sides of the shown picture, x to the right and y down, so that they hold at any size. Which frame of
reference the numbers of a row are in is stated by the row (`meta.frame`, for pixels with `meta.size` or the size of the file) and never
guessed: what cannot be placed is not drawn, and `Marks.problems` says why. Answers are read by the readers that score them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

from vlmrl.answers.base import ANSWER_TYPES, Draw
from vlmrl.answers.frame import frame_problem
from vlmrl.answers.marks import Mark, MarkedFrames, Marks, Pen, Span, Target, Unit
from vlmrl.metrics.boxes import listed, numbers
from vlmrl.metrics.spatial import read_thought
from vlmrl.types import CoordinateFrame, MediaRef, Sample

__all__ = ["Mark", "MarkedFrames", "Marks", "Span", "Target", "Unit", "answer_marks", "gold_marks", "marks_of", "target_of"]

OBJECTS = "objects"
"""Key of `gt` with true boxes by name, of rows whose thoughts name boxes."""
_ACTION_FRAME: CoordinateFrame = "norm1000"
"""Of `gt.action` in a row without `meta.frame`, as `rewards.gui_action` reads it."""


def drawn_keys() -> tuple[str, ...]:
    """Keys of `gt` that can be drawn, and those that drawing needs."""
    return (*_drawers(), OBJECTS, *(key for kind in ANSWER_TYPES.values() for key in kind.drawn_with))


def target_of(sample: Sample, original: tuple[int, int] | None = None) -> Target:
    """The target of a row. `original` is (height, width) of the upright file; for pixels `meta.size` ([width, height]) goes before it,
    since that is what rewards count in."""
    problems: list[str] = []
    frame: CoordinateFrame | None = sample.meta.get("frame")
    problem = None if frame is None else frame_problem(frame)
    if problem is not None:
        problems.append(problem)
        frame = None
    elif frame is None and sample.gt.get("action") is not None:
        frame = _ACTION_FRAME
    size = None if original is None else (float(original[1]), float(original[0]))
    given: Any = sample.meta.get("size")
    if frame == "pixel" and given is not None:
        sides = numbers(listed(given), 2)
        if sides is None or min(sides) <= 0:
            problems.append(f"meta.size is {str(given)[:40]}; pixels need it as [width, height]")
            size = None
        else:
            if size is not None and size != (sides[0], sides[1]):
                problems.append(f"meta.size is {sides[0]:g} x {sides[1]:g}, the file has {size[0]:g} x {size[1]:g}; drawn in meta.size")
            size = sides[0], sides[1]
    unit: Any = sample.meta.get("track_unit")
    if unit is not None and unit not in get_args(Unit):
        problems.append(f"meta.track_unit is {str(unit)[:40]!r}; known: {', '.join(get_args(Unit))}")
        unit = None
    return Target(
        answer_type=sample.answer_type,
        gt={key: sample.gt[key] for key in drawn_keys() if sample.gt.get(key) is not None},
        frame=frame,
        size=size,
        pictures=max(1, len(sample.media)),
        unit=unit,
        problems=tuple(problems),
    )


def gold_marks(target: Target, shown: MarkedFrames) -> Marks:
    """What the row says is right. What cannot be read of it is a problem."""
    pen, gt = Pen(target, shown), target.gt
    pen.problems += target.problems
    for key, draw in _drawers().items():
        if key in gt:
            draw(pen, gt[key])
    if OBJECTS in gt and "boxes" not in gt:
        boxes = list(gt[OBJECTS].values()) if isinstance(gt[OBJECTS], Mapping) else [None]
        pen.boxes([numbers(listed(box), 4) for box in boxes], f"gt.{OBJECTS}")
    return pen.marks()


def answer_marks(target: Target, shown: MarkedFrames, answer: str | None, thought: str | None = None) -> Marks:
    """What an answer says, and the boxes that its thought names where the row has true ones for them (`gt.objects`).

    An answer that cannot be read has no marks; that it cannot is in its record and no problem of the drawing.
    """
    pen = Pen(target, shown)
    if OBJECTS in target.gt and thought is not None:
        pen.boxes([box for _, box in read_thought(thought).placed], "thought")
    if answer is not None:
        ANSWER_TYPES[target.answer_type].draw(pen, answer)
    return pen.marks()


def marks_of(
    asked: Mapping[str, Any], info: Mapping[str, Any] | None, said: Sequence[tuple[str | None, str | None]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Gold, and each (answer, thought) to a kept question, as marks in JSON values.

    Args:
        asked: `answer_type`, and what `kept.record.drawable` says.
        info: what is known of its first medium (`kept.media`); None for one that was not kept.
    """
    if asked["answer_type"] not in ANSWER_TYPES:
        problem = f"nothing is drawn: the answer type {asked['answer_type']!r} is one of a plug-in, which the viewer does not run"
        return asdict(Marks(problems=(problem,))), [asdict(Marks()) for _ in said]
    media = tuple(MediaRef(kind=one["kind"], path="-") for one in asked["media"])
    row = Sample(
        id="-", task="-", answer_type=asked["answer_type"], question="-", media=media, answer="-", gt=asked["gt"], meta=asked["meta"]
    )
    target = target_of(row, None if info is None else (int(info["original"][0]), int(info["original"][1])))
    times = None if info is None or info["times"] is None else tuple(info["times"])
    shown = MarkedFrames(indices=(0,) if info is None else tuple(info["indices"]), times=times)
    return asdict(gold_marks(target, shown)), [asdict(answer_marks(target, shown, answer, thought)) for answer, thought in said]


def _drawers() -> dict[str, Draw]:
    return {key: draw for kind in ANSWER_TYPES.values() for key, draw in kind.draws}
