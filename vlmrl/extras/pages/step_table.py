"""The steps of thoughts under the seconds of the video that they are about: a table per card, with a line for the truth and each answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlmrl.answers.tags import parse
from vlmrl.evals.score.records import Record
from vlmrl.evals.score.steps import ComparedStep, Kind, compare_steps
from vlmrl.evals.score.table import visible
from vlmrl.extras.pages.charts import number
from vlmrl.extras.pages.runfiles import Frames

SIGNS: dict[Kind, str] = {"right": "✓", "wrong": "✗", "missing": "–", "surplus": "+"}
"""So that colour is not all that tells them apart."""
MOST_SURPLUS = 6
"""Columns for steps that are too many; those beyond are counted."""
_CUT = 60
"""Characters of a step; texts without commas may be one step as a whole."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One true step."""

    label: str
    """`2 s`."""
    text: str
    """What is true there."""
    offset: float | None
    """Of the frame nearest to it, as in `browser.Frame`; None for pictures, which have no times."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One step of one thought."""

    kind: Kind
    sign: str
    text: str
    """`missing`, or what the thought says."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One answer."""

    model: str
    layer: int
    colour: str
    cells: tuple[Cell, ...]
    """Of the true steps, then of those that are too many; empty without a thought."""
    note: str
    """`3 of 4 right, 1 surplus`."""


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """All answers to one question."""

    columns: tuple[Column, ...]
    surplus: int
    """Columns behind those of true steps."""
    lines: tuple[Line, ...]


def step_table(frames: Frames | None, answers: Sequence[tuple[str, int, str, Record]]) -> StepTable | None:
    """The table of one card; None where the row states no steps.

    Args:
        answers: (model, layer, colour, record) of each.
    """
    if frames is None or not frames.steps:
        return None
    steps = frames.steps
    lines: list[Line] = []
    for model, layer, colour, record in answers:
        compared = compare_steps(parse(record.text, record.answer_format).thought, steps)
        cells = tuple(_cell(step) for step in compared[: len(steps) + MOST_SURPLUS])
        lines.append(Line(model=visible(model), layer=layer, colour=colour, cells=cells, note=_note(compared, len(steps))))
    columns = tuple(
        Column(label=f"{number(step.time)} s", text=_short(step.text), offset=_nearest(frames.times, step.time)) for step in steps
    )
    return StepTable(columns=columns, surplus=max([0, *(len(line.cells) - len(steps) for line in lines)]), lines=tuple(lines))


def _cell(step: ComparedStep) -> Cell:
    return Cell(kind=step.kind, sign=SIGNS[step.kind], text="missing" if step.said is None else _short(step.said) or "(nothing)")


def _note(compared: Sequence[ComparedStep], count: int) -> str:
    if not compared:
        return "no thought"
    kinds = [step.kind for step in compared]
    more = f", {kinds.count('surplus')} surplus" if "surplus" in kinds else ""
    return f"{kinds.count('right')} of {count} right{more}"


def _nearest(times: Sequence[float] | None, time: float) -> float | None:
    """Place in the strip of the kept frame nearest to a time, in percent."""
    if not times:
        return None
    near = min(range(len(times)), key=lambda i: abs(times[i] - time))
    return 100 * near / (len(times) - 1) if len(times) > 1 else 0.0


def _short(text: str) -> str:
    return visible(text if len(text) <= _CUT else f"{text[:_CUT]} ...")
