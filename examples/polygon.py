"""An answer type from outside the package: the outline of an object, with metrics, drawing, and an adapter for rows of another shape.

A row has `gt.polygon` = [[x, y], ...] in the frame that it states in `meta.frame`; the answer is `{"polygon": [[x, y], ...]}`. The score
is the IoU of the two areas. Where an outline crosses itself the area is that of the even-odd rule, as SVG and COCO fill it.

The adapter `labelme` reads rows as LabelMe writes its files, one object each:

    {"imagePath": "a.png", "imageWidth": 640, "imageHeight": 480, "label": "dog",
     "shapes": [{"shape_type": "polygon", "points": [[10, 20], [110, 20], [60, 200]]}]}

`docs/adding_an_answer_type.md` walks through this file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from vlmrl.answers.base import AnswerType, Metric, Scored, answer_type, at_least, scored
from vlmrl.answers.foreign import ForeignRow, Gold, json_of, point_of
from vlmrl.answers.ground_truth import check_points, required
from vlmrl.data.adapters.base import ADAPTERS, ImportOptions
from vlmrl.errors import RowError
from vlmrl.extras.importers.build import build
from vlmrl.extras.importers.fields import Found, left_over, text_of
from vlmrl.metrics.boxes import Point, json_object, listed
from vlmrl.metrics.points import points_of
from vlmrl.types import Sample

if TYPE_CHECKING:
    from vlmrl.answers.marks import Pen

MOST_POINTS = 60
"""Corners of an outline; as many as a row may have."""


def parse_polygon(text: str) -> tuple[Point, ...] | None:
    """The outline that an answer gives; None if it gives none with 3 to 60 corners."""
    value = json_object(text)
    ring = None if value is None else points_of(value.get("polygon"))
    return ring if ring is not None and 3 <= len(ring) <= MOST_POINTS else None


def polygon_iou(a: Sequence[Point], b: Sequence[Point]) -> float:
    """Intersection over union of the areas of two polygons (even-odd rule), in [0, 1]; 0 if neither has an area.

    Exact: between two neighbouring heights of corners and crossings no edges cross, so every area is a row of trapezoids there.
    """
    both = either = 0.0
    for low, high in pairwise(sorted(set(_heights([*_edges(a), *_edges(b)])))):
        inside_a, inside_b = (_slab(ring, low, high) for ring in (a, b))
        shared = _overlap(inside_a, inside_b)
        both += shared
        either += _area(inside_a) + _area(inside_b) - shared
    return min(1.0, both / either) if either > 0 else 0.0


Edge = tuple[Point, Point]
Trapezoids = list[tuple[Point, Point]]
"""Of one slab, from left to right: left and right side, each as its x at the lower and at the upper end, times the slab's height; a mean
width is then an area."""


def _edges(ring: Sequence[Point]) -> list[Edge]:
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))


def _heights(edges: Sequence[Edge]) -> Iterable[float]:
    """y of all corners, and of all crossings of two edges."""
    for i, ((x1, y1), (x2, y2)) in enumerate(edges):
        yield y1
        for (x3, y3), (x4, y4) in edges[:i]:
            across = (x2 - x1) * (y4 - y3) - (y2 - y1) * (x4 - x3)
            if across == 0:
                continue
            t = ((x3 - x1) * (y4 - y3) - (y3 - y1) * (x4 - x3)) / across
            u = ((x3 - x1) * (y2 - y1) - (y3 - y1) * (x2 - x1)) / across
            if 0 <= t <= 1 and 0 <= u <= 1:
                yield y1 + t * (y2 - y1)


def _slab(ring: Sequence[Point], low: float, high: float) -> Trapezoids:
    """What of the slab between two heights lies inside."""
    height = high - low
    sides: list[tuple[float, Point]] = []
    for (x1, y1), (x2, y2) in _edges(ring):
        if min(y1, y2) <= low and max(y1, y2) >= high and y1 != y2:
            at = [x1 + (y - y1) / (y2 - y1) * (x2 - x1) for y in (low, high)]
            sides.append(((at[0] + at[1]) / 2, (at[0] * height, at[1] * height)))
    ordered = [side for _, side in sorted(sides)]
    return list(zip(ordered[::2], ordered[1::2], strict=True))


def _area(stretches: Trapezoids) -> float:
    return sum((right[0] - left[0] + right[1] - left[1]) / 2 for left, right in stretches)


def _overlap(a: Trapezoids, b: Trapezoids) -> float:
    """Area that two rows of trapezoids share. No sides cross within a slab, so of two left sides the one with the larger mean counts."""
    out = 0.0
    for left_a, right_a in a:
        for left_b, right_b in b:
            left, right = max(left_a, left_b, key=sum), min(right_a, right_b, key=sum)
            out += max(0.0, (right[0] - left[0] + right[1] - left[1]) / 2)
    return out


@answer_type("polygon")
class Polygon(AnswerType):
    """The outline of one object, scored by the IoU of the areas."""

    ask = 'the outline as JSON {"polygon": [[x, y], ...]}'
    main = "polygon_iou"
    metrics = (
        Metric("polygon_iou", "polygon IoU", scored("polygon_iou")),
        Metric("polygon_r@0.5", "polygon R@0.5", at_least("polygon_iou", 0.5)),
    )
    right_at = 0.5
    in_frame = True
    numbers_leak = True
    draws = (("polygon", lambda pen, value: pen.polygon(points_of([listed(point) for point in listed(value)]), "gt.polygon")),)

    def check(self, gt: Mapping[str, Any]) -> dict[str, Any]:
        if check_points(required(gt, "polygon", self.name), "polygon") < 3:
            raise RowError("bad_value", "'gt.polygon' needs at least 3 corners")
        if polygon_iou(gt["polygon"], gt["polygon"]) == 0:
            raise RowError("bad_value", "'gt.polygon' has no area")
        return dict(gt)

    def write(self, gt: Mapping[str, Any]) -> str:
        return json.dumps({"polygon": gt["polygon"]})

    def score(self, answer: str | None, sample: Sample) -> Scored:
        gold = [(float(x), float(y)) for x, y in sample.gt["polygon"]]
        ring = None if answer is None else parse_polygon(answer)
        pred = None if ring is None else tuple(v for point in ring for v in point)
        return pred, tuple(v for point in gold for v in point), {"polygon_iou": 0.0 if ring is None else polygon_iou(ring, gold)}

    def draw(self, pen: Pen, answer: str) -> None:
        ring = parse_polygon(answer)
        if ring is not None:
            pen.polygon(ring, "answer")

    def convert(self, value: object, row: ForeignRow) -> Gold:
        corners = json_of(value)
        if not isinstance(corners, list):
            raise RowError("answer", f"the gold answer {str(corners)[:60]} is not a list of points")
        ring = [point_of(corner, row, f"points[{i}]") for i, corner in enumerate(corners)]
        return Gold(answer=self.write({"polygon": ring}), gt={"polygon": ring}, framed=True)


class LabelMe:
    """Rows as LabelMe writes its files. The question asks for the label; pixels are those of the file."""

    name = "labelme"

    def detect(self, row: Mapping[str, Any]) -> bool:
        return "shapes" in row and "imagePath" in row

    def convert(self, row: Mapping[str, Any], options: ImportOptions) -> dict[str, Any]:
        """A row of our schema.

        Raises:
            RowError: the row has not exactly one polygon, or `build` refuses it.
        """
        shapes = [shape for shape in listed(row["shapes"]) if isinstance(shape, Mapping) and shape.get("shape_type") == "polygon"]
        if len(shapes) != 1:
            raise RowError("answer", f"'shapes' has {len(shapes)} polygons; give one object per row")
        found = Found(
            question=f"Outline the {text_of(row, 'label')}.",
            answer=shapes[0].get("points"),
            images=[text_of(row, "imagePath")],
            answer_type="polygon",
            frame="pixel",
            size=(float(row["imageWidth"]), float(row["imageHeight"])) if "imageWidth" in row and "imageHeight" in row else None,
            meta=left_over(row, "shapes", "imagePath", "imageWidth", "imageHeight", "label"),
        )
        return build(found, options)


ADAPTERS.add(LabelMe.name, LabelMe())
