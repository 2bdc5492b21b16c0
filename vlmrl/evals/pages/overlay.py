"""Marks on the pixels that a model saw: gold and predicted answers as boxes, points, areas and time spans.

Places are in percent of the sides of the shown picture, x to the right and y down, so that they hold at any size. Which frame of
reference the numbers of a row are in is stated by the row (`meta.frame`, for pixels with `meta.size` or the size of the file) and never
guessed: what cannot be placed is not drawn, and `Marks.problems` says why. Answers are read by the readers that score them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from vlmrl.answers.frame import frame_problem
from vlmrl.answers.marks import Mark, Marks, Pen, Shown, Span, Target, Unit
from vlmrl.metrics.boxes import numbers, parse_boxes
from vlmrl.metrics.gui import action_of, parse_action
from vlmrl.metrics.moments import highlights_of, parse_highlights
from vlmrl.metrics.points import parse_points, parse_segmentation, points_of, segmentation_of
from vlmrl.metrics.spatial import read_thought
from vlmrl.metrics.temporal import parse_time_span
from vlmrl.metrics.tracking import parse_track, parse_tube, track_of, tube_of
from vlmrl.types import CoordinateFrame, Sample

__all__ = ["DRAWN", "PLACED", "Mark", "Marks", "Shown", "Span", "Target", "Unit", "answer_marks", "gold_marks", "target_of"]

PLACED = ("bbox", "point", "action", "segmentation", "tracking", "spatio_temporal")
"""Answer types that need a coordinate frame."""
DRAWN = ("time", "boxes", "points", "mask", "polygons", "objects", "action", "highlights", "clip_seconds", "track", "tube", "segmentation")
"""Keys of `gt` that can be drawn."""
_ACTION_FRAME: CoordinateFrame = "norm1000"
"""Of `gt.action` in a row without `meta.frame`, as `rewards.gui_action` reads it."""


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
        sides = numbers(_listed(given), 2)
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
        gt={key: sample.gt[key] for key in DRAWN if sample.gt.get(key) is not None},
        frame=frame,
        size=size,
        pictures=max(1, len(sample.media)),
        unit=unit,
        problems=tuple(problems),
    )


def gold_marks(target: Target, shown: Shown) -> Marks:
    """What the row says is right. What cannot be read of it is a problem."""
    pen, gt = Pen(target, shown), target.gt
    pen.problems += target.problems
    if "time" in gt:
        pen.span(numbers(_listed(gt["time"]), 2), "gt.time")
    if "action" in gt:
        pen.action(action_of(gt["action"]) if isinstance(gt["action"], Mapping) else None, "gt.action")
    if "boxes" in gt:
        pen.boxes([numbers(_listed(box), 4) for box in _listed(gt["boxes"]) or [None]], "gt.boxes")
    if "points" in gt:
        pen.points(points_of([_listed(point) for point in _listed(gt["points"]) or [None]]), "gt.points")
    if "segmentation" in gt:
        pen.segmentation(segmentation_of(gt["segmentation"]) if isinstance(gt["segmentation"], Mapping) else None, "gt.segmentation")
    if "track" in gt:
        pen.track(track_of(gt["track"]), "gt.track")
    if "tube" in gt:
        pen.tube(tube_of(gt["tube"]) if isinstance(gt["tube"], Mapping) else None, "gt.tube")
    if "highlights" in gt:
        pen.highlights(highlights_of([_listed(pair) for pair in _listed(gt["highlights"])]), "gt.highlights")
    if "objects" in gt and "boxes" not in gt:
        boxes = list(gt["objects"].values()) if isinstance(gt["objects"], Mapping) else [None]
        pen.boxes([numbers(_listed(box), 4) for box in boxes], "gt.objects")
    for i, ring in enumerate(_listed(gt.get("polygons"))):
        pen.polygon(points_of([_listed(point) for point in _listed(ring)]), f"gt.polygons[{i}]")
    if "mask" in gt:
        pen.mask(gt["mask"])
    return pen.marks()


def answer_marks(target: Target, shown: Shown, answer: str | None, thought: str | None = None) -> Marks:
    """What an answer says, and the boxes that its thought names where the row has true ones for them (`gt.objects`).

    An answer that cannot be read has no marks; that it cannot is in its record and no problem of the drawing.
    """
    pen = Pen(target, shown)
    if "objects" in target.gt and thought is not None:
        pen.boxes([box for _, box in read_thought(thought).placed], "thought")
    if answer is not None:
        _draw_answer(pen, target.answer_type, answer)
    return pen.marks()


def _draw_answer(pen: Pen, answer_type: str, answer: str) -> None:
    if answer_type == "time_span" and (span := parse_time_span(answer)) is not None:
        pen.span(span, "answer")
    elif answer_type == "bbox" and (boxes := parse_boxes(answer)) is not None:
        pen.boxes(boxes, "answer")
    elif answer_type == "point" and (points := parse_points(answer)) is not None:
        pen.points(points, "answer")
    elif answer_type == "action" and (action := parse_action(answer)) is not None:
        pen.action(action, "answer")
    elif answer_type == "segmentation" and (prompt := parse_segmentation(answer)) is not None:
        pen.segmentation(prompt, "answer")
    elif answer_type == "tracking" and (track := parse_track(answer)) is not None:
        pen.track(track, "answer")
    elif answer_type == "spatio_temporal" and (tube := parse_tube(answer)) is not None:
        pen.tube(tube, "answer")
    elif answer_type == "highlight" and (found := parse_highlights(answer)) is not None:
        pen.highlights(found, "answer")


def _listed(value: Any) -> list[Any]:
    """Lists and tuples as a list; anything else as an empty one, which no reader takes."""
    return list(value) if isinstance(value, list | tuple) else []
