"""Charts that stack their series: the seconds of each step by phase, and the tokens of each step, run and saved.

The top edge of a stack is the whole: the length of the step, or the tokens that a layout without shared prompts would have run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vlmrl.evals.pages.charts import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    MAX_POINTS,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Curve,
    Points,
    Tick,
    bands_of,
    binned,
    by_stage,
    nice_ticks,
    number,
)
from vlmrl.evals.pages.timeshare import UNEXPLAINED, step_phases

NAMED = 5
"""Phases with an area of their own, where there are more than one further; the rest share one."""
REST = "other phases"
REST_COLOUR = "#e1e5e8"
"""Of what no phase explains."""
FORWARD, SAVED = "tokens/forward", "tokens/saved"


def stacked_charts(lines: Sequence[Mapping[str, Any]], *, prefix: str) -> list[Chart]:
    """The two panels, as far as `lines` have their values. `prefix` makes the ids unique in a page."""
    out: list[Chart] = []
    times = phase_series(lines)
    if times:
        out.append(_stacked(f"{prefix}-time", "Time of a step", "seconds by phase, stacked", times))
    tokens = token_series(lines)
    if tokens:
        note = "through the model in the update, and what repeating each prompt for every answer would add"
        out.append(_stacked(f"{prefix}-tokens", "Tokens of a step", note, tokens))
    return out


def phase_series(lines: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Seconds of each step by phase, longest phase first, each with a value at every step; `unexplained` comes last."""
    steps = step_phases(lines)
    sums: dict[str, float] = {}
    for _, _, phases in steps:
        for name, seconds in phases.items():
            sums[name] = sums.get(name, 0.0) + seconds
    ranked = sorted((name for name in sums if name != UNEXPLAINED), key=lambda name: (-sums[name], name))
    named = ranked if len(ranked) <= NAMED + 1 else ranked[:NAMED]
    shared = ranked[len(named) :]
    out: dict[str, Points] = {name: [(step, stage, phases.get(name, 0.0)) for step, stage, phases in steps] for name in named}
    if shared:
        out[REST] = [(step, stage, sum(phases.get(name, 0.0) for name in shared)) for step, stage, phases in steps]
    if steps:
        out[UNEXPLAINED] = [(step, stage, phases[UNEXPLAINED]) for step, stage, phases in steps]
    return out


def token_series(lines: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Tokens run and saved, at the steps that logged both."""
    steps = [line for line in lines if FORWARD in line and SAVED in line]
    if not steps:
        return {}
    return {name: [(int(line["global_step"]), str(line["stage"]), float(line[name])) for line in steps] for name in (FORWARD, SAVED)}


def _stacked(id_: str, title: str, note: str, found: Mapping[str, Points]) -> Chart:
    """A chart of series that have the same steps. Values that are not finite, or negative, count as nothing."""
    drawn = {
        name: binned([(s, g, v if math.isfinite(v) and v > 0 else 0.0) for s, g, v in points], MAX_POINTS) for name, points in found.items()
    }
    size = max(-(-len(points) // MAX_POINTS) for points in found.values())
    if size > 1:
        note = f"{note}; each point is the mean of {size} steps"
    places = [(step, stage) for step, stage, _ in next(iter(drawn.values()))]
    steps = [step for step, _ in places]
    tops: list[list[float]] = []
    for points in drawn.values():
        below = tops[-1] if tops else [0.0] * len(points)
        tops.append([low + value for low, (_, _, value) in zip(below, points, strict=True)])
    high = 1.06 * max(tops[-1]) or 1.0
    first, last = steps[0], max(steps[-1], steps[0] + 1)

    def x(step: float) -> float:
        return round(LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT), 2)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / high * (HEIGHT - TOP - BOTTOM), 2)

    curves: list[Curve] = []
    series: list[dict[str, Any]] = []
    floor = [0.0] * len(steps)
    for n, ((name, points), top) in enumerate(zip(drawn.items(), tops, strict=True)):
        colour = REST_COLOUR if name == UNEXPLAINED else COLOURS[n % len(COLOURS)]
        edges = [(step, stage, (x(step), y(low), y(up))) for (step, stage), low, up in zip(places, floor, top, strict=True)]
        curves.append(Curve(name=name, colour=colour, faint="", bold="", dots=(), last=number(points[-1][2]), area=_area(edges)))
        series.append({"name": name, "colour": colour, "values": [number(v) for _, _, v in points], "y": [y(v) for v in top]})
        floor = top
    return Chart(
        id=id_,
        title=title,
        note=note,
        x_ticks=tuple(Tick(at=x(t), label=number(t)) for t in nice_ticks(first, last, 5) if t == int(t)),
        y_ticks=tuple(Tick(at=y(t), label=number(t)) for t in nice_ticks(0.0, high, 4)),
        bands=bands_of(found, x),
        curves=tuple(curves),
        hover={"steps": steps, "x": [x(step) for step in steps], "series": series},
        names=tuple(found),
    )


def _area(edges: Sequence[tuple[int, str, tuple[float, float, float]]]) -> str:
    """One closed path per stage: along the top and back along the bottom. A stage of one step becomes a bar of one unit."""
    out: list[str] = []
    for segment in by_stage(edges):
        corners = [place for _, _, place in segment]
        if len(corners) == 1:
            (at, low, up) = corners[0]
            corners = [(round(at - 0.5, 2), low, up), (round(at + 0.5, 2), low, up)]
        way = [(at, up) for at, _, up in corners] + [(at, low) for at, low, _ in reversed(corners)]
        out.append("M" + "L".join(f"{at:g} {height:g}" for at, height in way) + "Z")
    return "".join(out)
