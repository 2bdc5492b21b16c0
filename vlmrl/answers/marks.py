"""What can be drawn of an answer, and the pen that draws it: shapes in percent of the shown picture, and spans in seconds.

What is drawn of which answer, the pages say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from vlmrl.metrics.boxes import Box, Point, sides, valid
from vlmrl.metrics.gui import Action
from vlmrl.metrics.moments import CLIP, clip_of
from vlmrl.metrics.points import Segmentation, decode_mask
from vlmrl.metrics.tracking import Track, Tube
from vlmrl.types import CoordinateFrame

Unit = Literal["s", "shown0", "shown1"]
"""What the keys of a track count: seconds, or the frames that the model saw, from 0 or from 1. A row says it in `meta.track_unit`."""
MASK_SIDE = 128
"""A mask is drawn at no more rows and columns than that."""
_SLACK = 0.1
"""Percent of a side by which a place may lie outside: rounding, as in `answers.coordinates`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a row says of its answer, as far as it can be drawn."""

    answer_type: str
    gt: Mapping[str, Any]
    """Its keys that are drawn or that drawing reads."""
    frame: CoordinateFrame | None = None
    """None: the row states none."""
    size: tuple[float, float] | None = None
    """(width, height) of the picture that pixels are counted in."""
    pictures: int = 1
    """Media of the row. With several, nothing says which one a box is in."""
    unit: Unit | None = None
    problems: tuple[str, ...] = ()
    """What the row states and cannot be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkedFrames:
    """The frames that are drawn on."""

    indices: tuple[int, ...] = (0,)
    """Which of the frames that the model saw."""
    times: tuple[float, ...] | None = None
    """Seconds of each; None for an image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One shape."""

    kind: Literal["box", "point", "polygon", "mask"]
    points: tuple[Point, ...]
    """Percent. A box has two opposite corners, a point one; a mask has the corners of rectangles that fill it, two by two."""
    frame: int | None = None
    """Index into the shown frames; None: on each of them."""
    negative: bool = False
    """A point that is stated not to be on the object."""
    odd: bool = False
    """Cut to the picture, or its corners were put in order: what was said lies elsewhere or is no box."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A stretch of time in seconds, in order."""

    start: float
    end: float
    weight: float = 1.0
    """Saliency over the largest of the answer, in [0, 1]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """What there is to draw of one answer."""

    shapes: tuple[Mark, ...] = ()
    spans: tuple[Span, ...] = ()
    problems: tuple[str, ...] = ()
    """What was said and is not drawn, or not where it was said, with the reason."""


@dataclass(slots=True)
class Pen:
    """Collects the marks of one answer."""

    target: Target
    shown: MarkedFrames
    shapes: list[Mark] = field(default_factory=list[Mark])
    spans: list[Span] = field(default_factory=list[Span])
    problems: list[str] = field(default_factory=list[str])

    def marks(self) -> Marks:
        return Marks(shapes=tuple(self.shapes), spans=tuple(self.spans), problems=tuple(dict.fromkeys(self.problems)))

    def boxes(self, boxes: Sequence[Sequence[float] | None], where: str, frame: int | None = None) -> None:
        for box in boxes:
            if box is None:
                self._unreadable(where)
                continue
            # a reversed box is drawn where it lies and marked as odd: scoring gives it nothing, and the page should show why
            straight: Box = (min(box[0], box[2]), min(box[1], box[3]), max(box[0], box[2]), max(box[1], box[3]))
            ordered = valid((box[0], box[1], box[2], box[3]))
            if not ordered:
                self.problems.append(f"{where}: {_text(box)} has no area as it was given; x1 < x2 and y1 < y2")
            self._shape("box", [(straight[0], straight[1]), (straight[2], straight[3])], where, frame, odd=not ordered)

    def points(self, points: Sequence[Point] | None, where: str, frame: int | None = None, *, negative: bool = False) -> None:
        if points is None:
            self._unreadable(where)
        for point in points or ():
            self._shape("point", [point], where, frame, negative=negative)

    def polygon(self, ring: Sequence[Point] | None, where: str) -> None:
        if ring is None or len(ring) < 3:
            self._unreadable(where)
        else:
            self._shape("polygon", ring, where, None)

    def action(self, action: Action | None, where: str) -> None:
        if action is None:
            self._unreadable(where)
            return
        if action.box is not None:
            self.boxes([action.box], where)
        if action.point is not None:
            self.points([action.point], where)

    def segmentation(self, value: Segmentation | None, where: str) -> None:
        if value is None:
            self._unreadable(where)
            return
        frame = None
        # the box belongs to one moment of the video; on any other frame it would look wrong
        if value.time is not None and self.shown.times is not None:
            frame = self._at(value.time, "s", where)
            if frame is None:
                return
        self.boxes([value.box], where, frame)
        self.points(value.positive, where, frame)
        self.points(value.negative, where, frame, negative=True)

    def track(self, track: Track | None, where: str) -> None:
        if track is None:
            self._unreadable(where)
        # a key "12" is a second, or a frame of the file, or of those shown: not guessed
        elif self.target.unit is None:
            self.problems.append(
                f"{where}: not drawn, nothing says what its frames count; set meta.track_unit to one of {', '.join(get_args(Unit))}"
            )
        else:
            for key, box in track.items():
                frame = self._at(key, self.target.unit, where)
                if frame is not None:
                    self.boxes([box], where, frame)

    def tube(self, tube: Tube | None, where: str) -> None:
        if tube is None:
            self._unreadable(where)
            return
        if tube.time is not None:
            self.span(tube.time, where)
        if tube.boxes is not None:
            self.track(tube.boxes, where)

    def span(self, span: Sequence[float] | None, where: str) -> None:
        if span is None:
            self._unreadable(where)
        else:
            self.spans.append(Span(start=min(span[0], span[1]), end=max(span[0], span[1])))

    def highlights(self, pairs: Sequence[Point] | None, where: str) -> None:
        """Draw each highlight as the clip that it lies in, which is what scoring compares."""
        if pairs is None:
            self._unreadable(where)
            return
        clip = float(self.target.gt.get("clip_seconds") or CLIP)
        most = max((saliency for _, saliency in pairs), default=0.0)
        for seconds, saliency in pairs:
            start = clip_of(seconds, clip=clip) * clip
            weight = max(0.0, saliency / most) if most > 0 else 0.0
            self.spans.append(Span(start=start, end=start + clip, weight=weight))

    def mask(self, value: Any) -> None:
        """Draw a mask. It covers the whole picture, at any size, so it needs no frame."""
        if self.target.pictures > 1:
            self._several("gt.mask")
            return
        try:
            mask = decode_mask(value if isinstance(value, Mapping) else {})
        except ValueError as error:
            self.problems.append(f"gt.mask: {error}")
            return
        self.shapes.append(Mark(kind="mask", points=mask_rectangles(mask)))

    def _shape(
        self,
        kind: Literal["box", "point", "polygon"],
        points: Sequence[Point],
        where: str,
        frame: int | None,
        *,
        negative: bool = False,
        odd: bool = False,
    ) -> None:
        sides = self._sides(where)
        if sides is None:
            return
        # percent, so that a page can lay shapes over the picture at any size
        places = [(100 * x / sides[0], 100 * y / sides[1]) for x, y in points]
        outside = any(not -_SLACK <= v <= 100 + _SLACK for place in places for v in place)
        if outside:
            said = _text([v for point in points for v in point])
            self.problems.append(f"{where}: {said} reaches outside of the picture ({sides[0]:g} x {sides[1]:g}, {self.target.frame})")
        cut = tuple((min(max(x, 0.0), 100.0), min(max(y, 0.0), 100.0)) for x, y in places)
        self.shapes.append(Mark(kind=kind, points=cut, frame=frame, negative=negative, odd=odd or outside))

    def _sides(self, where: str) -> tuple[float, float] | None:
        """(width, height) of the picture in the units of the row."""
        if self.target.pictures > 1:
            self._several(where)
            return None
        if self.target.frame is None:
            self.problems.append(
                f"{where}: not drawn, the row states no coordinate frame; set meta.frame to one of {', '.join(get_args(CoordinateFrame))}"
            )
            return None
        if self.target.frame == "pixel" and self.target.size is None:
            self.problems.append(f"{where}: not drawn, pixels need the size of their picture; set meta.size to [width, height]")
            return None
        return sides(self.target.frame, self.target.size or (1.0, 1.0))

    def _at(self, key: float, unit: Unit, where: str) -> int | None:
        """The shown frame that a key of a track means; None, and a problem, where none is."""
        times, indices = self.shown.times, self.shown.indices
        if unit != "s":
            number = key - (unit == "shown1")  # counted from 1 in that unit
            found = next((place for place, index in enumerate(indices) if index == number), None)
            if found is None:
                self.problems.append(f"{where}: frame {key:g} is not among those shown")
            return found
        if times is None:
            self.problems.append(f"{where}: a time of {key:g} s in a picture")
            return None
        near = min(range(len(times)), key=lambda i: abs(times[i] - key))
        # half of the widest gap between shown frames: any time between two of them is that near to one
        reach = max((b - a for a, b in pairwise(times)), default=float("inf")) / 2
        if abs(times[near] - key) > reach + 1e-6:
            self.problems.append(f"{where}: no frame was shown near {key:g} s")
            return None
        return near

    def _unreadable(self, where: str) -> None:
        self.problems.append(f"{where}: cannot be read, so it is not drawn")

    def _several(self, where: str) -> None:
        self.problems.append(f"{where}: not drawn, the row has {self.target.pictures} media and does not say which one it is in")


def mask_rectangles(mask: np.ndarray) -> tuple[Point, ...]:
    """Cover a mask (bool [H, W]) with rectangles: opposite corners in percent, two by two; at most `MASK_SIDE` rows and columns of it.

    Returns:
        (x, y) in percent: two opposite corners for each rectangle, one after the other.
    """
    rows, columns = (np.linspace(0, side - 1, min(side, MASK_SIDE)).round().astype(int) for side in mask.shape)
    grid = mask[np.ix_(rows, columns)]
    height, width = grid.shape
    out: list[Point] = []
    # (left, right) of a run of set cells -> row where it began; a rectangle is closed in the first row that lacks its run
    open_: dict[tuple[int, int], int] = {}
    for y in range(height + 1):
        # where cells change, with a clear one on both sides: starts and ends in turn. One row behind the last closes what is open
        edges = np.flatnonzero(np.diff(np.concatenate([[0], grid[y].astype(np.int8), [0]]))) if y < height else np.empty(0, dtype=int)
        runs = {(int(a), int(b)) for a, b in edges.reshape(-1, 2)}
        for left, right in sorted(open_.keys() - runs):
            top = open_.pop((left, right))
            out += [(100 * left / width, 100 * top / height), (100 * right / width, 100 * y / height)]
        open_ |= {run: y for run in runs - open_.keys()}
    return tuple(out)


def _text(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{v:g}" for v in values) + "]"
