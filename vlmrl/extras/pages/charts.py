"""Charts of a run's report: the panels that put several metrics together, as geometry in the units of the SVG's view box.

Single scalars are for TensorBoard (`run.tracking`). Here are the reward with its parts, the form of the answers, thoughts by kind of
question, the groups without signal, and the time and the tokens of each step, stacked. Nothing here knows HTML, so nothing here has to
be escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmrl.evals.score.timeshare import UNEXPLAINED, step_phases

WIDTH, HEIGHT = 380, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 22
"""Margins around the plot."""
MAX_POINTS = 150
"""Longer curves are drawn as means of consecutive steps."""
COLOURS = ("#2b5c8a", "#c0652a", "#3f8467", "#80619c", "#a98a2e", "#9b4f5d", "#5b6b78")
REST_COLOUR = "#e1e5e8"
"""Of what no phase explains."""
NAMED = 5
"""Phases with an area of their own, where there are more than one further; the rest share one."""
REST = "other phases"
TOKENS = ("tokens/forward", "tokens/saved")
HELD_OUT = ("eval/score", "eval/miou", "eval/accuracy", "eval/think_rate", "eval/parse_rate", "eval/*/macro", "eval/*/score")
"""Metrics of the evaluations in a run, drawn from one to the next."""
SPOKEN = {
    "reward": "sum",
    "frac_reward_zero_std": "all rewards equal",
    "completions/think_rate": "with thought",
    "completions/parse_rate": "readable",
    "completions/format_rate": "right form",
    "completions/clipped_ratio": "cut off",
    "tokens/forward": "computed",
    "tokens/saved": "saved by sharing",
    "eval/score": "score",
    "eval/miou": "mIoU",
    "eval/accuracy": "accuracy",
    "eval/think_rate": "with thought",
    "eval/parse_rate": "readable",
}
"""Names of metrics as legends say them."""
_SPOKEN = (
    (re.compile(r"rewards/(.+)/mean"), r"\1"),
    (re.compile(r"filter/(.+)"), r"left out by \1"),
    (re.compile(r"completions/think_rate/(?:\w+=)?(.+)"), r"\1"),
    (re.compile(r"eval/(.+)/(macro|score)"), r"\1"),
)
LINES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Reward", "mean over sampled answers: the sum, and its parts before weighting", ("reward", "rewards/*/mean")),
    (
        "Form of the answers",
        "share of sampled answers",
        ("completions/think_rate", "completions/parse_rate", "completions/format_rate", "completions/clipped_ratio"),
    ),
    (
        "Thoughts by kind of question",
        "share of sampled answers with a thought, by what rows say of themselves",
        ("completions/think_rate/*",),
    ),
    (
        "Groups without signal",
        "share of groups whose rewards are all equal, and of rows left out by filters",
        ("frac_reward_zero_std", "filter/*"),
    ),
)
"""Title, note, and names of the metrics (`*` stands for any text) of each chart of lines. A chart without data is not drawn."""

Points = list[tuple[int, str, float]]
"""(global step, stage, value) in the order of the file."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A mark of an axis: its place and its label."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Band:
    """The part of the step axis that belongs to one stage."""

    name: str
    x0: float
    x1: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One series: SVG path data of a line, or of an area where the chart is stacked."""

    name: str
    colour: str
    path: str
    last: str
    """Newest value, for the legend."""
    flat: bool = False
    """The same value everywhere: dimmed in the legend."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One panel."""

    id: str
    title: str
    note: str
    stacked: bool
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    bands: tuple[Band, ...]
    curves: tuple[Curve, ...]
    hover: Mapping[str, Any]
    """JSON values for the tooltip: `steps`, `x` (their places), and `series`: `name`, `colour`, `values`, `y` of each curve."""


def charts(lines: Sequence[Mapping[str, Any]], *, prefix: str) -> list[Chart]:
    """Every panel that has a finite value in `lines` of `metrics.jsonl`. `prefix` makes the ids unique in a page."""
    out: list[Chart] = []
    if held := _held_out(lines):
        out.append(_chart(f"{prefix}-eval", "Held-out questions", "means of the evaluations, greedy answers", held))
    for n, (title, note, patterns) in enumerate(LINES):
        found = {name: points_of(lines, name) for name in matching(lines, patterns)}
        found = {name: points for name, points in found.items() if any(math.isfinite(v) for _, _, v in points)}
        if found:
            out.append(_chart(f"{prefix}-{n}", title, note, found))
    if phases := phase_series(lines):
        out.append(_chart(f"{prefix}-time", "Time of a step", "seconds by phase", phases, stacked=True))
    both = [line for line in lines if all(name in line for name in TOKENS)]
    if both:
        note = "through the model in the update, and what repeating each prompt for every answer would add"
        out.append(_chart(f"{prefix}-tokens", "Tokens of a step", note, {n: points_of(both, n) for n in TOKENS}, stacked=True))
    return out


def _held_out(lines: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Metrics of evaluations at two steps or more, as one line through all stages. Of those that agree the named one is drawn."""
    found = {name: [(step, "", value) for step, _, value in points_of(lines, name)] for name in matching(lines, HELD_OUT)}
    found = {name: points for name, points in found.items() if len({s for s, _, v in points if math.isfinite(v)}) > 1}
    general = [name for name in found if name.endswith("/score")]
    for name in general:
        if any(found[name] == points for other, points in found.items() if other != name):
            del found[name]
    return found


def spoken(name: str) -> str:
    """The name of a metric or phase as a legend says it."""
    for pattern, words in _SPOKEN:
        if pattern.fullmatch(name):
            return pattern.sub(words, name).replace("_", " ")
    return SPOKEN.get(name, name.replace("_", " "))


def matching(lines: Iterable[Mapping[str, Any]], patterns: Sequence[str]) -> list[str]:
    """Names in `lines` that fit a pattern, in the order of the patterns and then by name."""
    names = sorted({name for line in lines for name in line})
    compiled = [re.compile(".+".join(map(re.escape, pattern.split("*")))) for pattern in patterns]
    return list(dict.fromkeys(name for pattern in compiled for name in names if pattern.fullmatch(name)))


def points_of(lines: Iterable[Mapping[str, Any]], name: str) -> Points:
    """The values of one metric."""
    return [(int(line["global_step"]), str(line["stage"]), float(line[name])) for line in lines if name in line]


def phase_series(lines: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Seconds of each step by phase, longest phase first, each with a value at every step; `unexplained` comes last."""
    steps = step_phases(lines)
    if not steps:
        return {}
    names = {name for _, _, phases in steps for name in phases} - {UNEXPLAINED}
    ranked = sorted(names, key=lambda name: (-sum(phases.get(name, 0.0) for _, _, phases in steps), name))
    named = ranked if len(ranked) <= NAMED + 1 else ranked[:NAMED]
    series = {name: [name] for name in named} | ({REST: ranked[NAMED:]} if len(named) < len(ranked) else {}) | {UNEXPLAINED: [UNEXPLAINED]}
    return {name: [(step, stage, sum(phases.get(m, 0.0) for m in of)) for step, stage, phases in steps] for name, of in series.items()}


def binned(points: Points, most: int) -> Points:
    """At most about `most` points: means of consecutive finite values of one stage, at the last step of each bin."""
    size = -(-len(points) // most)
    if size <= 1:
        return points
    out: Points = []
    for segment in by_stage(points):
        for start in range(0, len(segment), size):
            part = segment[start : start + size]
            finite = [v for _, _, v in part if math.isfinite(v)]
            out.append((part[-1][0], part[-1][1], sum(finite) / len(finite) if finite else math.nan))
    return out


def by_stage(points: Points) -> list[Points]:
    """Consecutive points of one stage."""
    out: list[Points] = []
    for point in points:
        if not out or out[-1][-1][1] != point[1]:
            out.append([])
        out[-1].append(point)
    return out


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) within [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A short text: three significant digits, no `-0`."""
    if not math.isfinite(value):
        return str(value)
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "0" if text == "-0" else text


@dataclass(frozen=True, slots=True)
class _Axes:
    """Maps steps and finite values to places."""

    first: int
    last: int
    low: float
    high: float

    def x(self, step: float) -> float:
        return round(LEFT + (step - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT), 2)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (value - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM), 2)


def _chart(id_: str, title: str, note: str, found: Mapping[str, Points], *, stacked: bool = False) -> Chart:
    """A chart of lines, or of areas upon each other: then all series have the same steps, and what is not finite or negative is 0."""
    if stacked:
        found = {name: [(s, g, v if math.isfinite(v) and v > 0 else 0.0) for s, g, v in points] for name, points in found.items()}
    size = max(-(-len(points) // MAX_POINTS) for points in found.values())
    drawn = {name: binned(points, MAX_POINTS) for name, points in found.items()}
    edges = _stack(drawn) if stacked else drawn
    steps = sorted({step for points in drawn.values() for step, _, _ in points})
    finite = [v for points in edges.values() for _, _, v in points if math.isfinite(v)]
    low, high = _extent(finite, from_zero=stacked)
    axes = _Axes(steps[0], max(steps[-1], steps[0] + 1), low, high)
    curves: list[Curve] = []
    series: list[dict[str, Any]] = []
    floor = {step: 0.0 for step in steps}
    for n, (name, points) in enumerate(drawn.items()):
        colour = REST_COLOUR if name == UNEXPLAINED else COLOURS[n % len(COLOURS)]
        path = "".join(_area(part, floor, axes) if stacked else _line(part, axes) for part in by_stage(edges[name]))
        values = {step: number(v) for step, _, v in points if math.isfinite(v)}
        floor = {step: v for step, _, v in edges[name]}
        places = {step: axes.y(v) for step, v in floor.items() if math.isfinite(v)}
        last = next(values[s] for s, _, _ in reversed(points) if s in values)
        curves.append(
            Curve(name=spoken(name), colour=colour, path=path, last=last, flat=len(points) > 1 and len(set(values.values())) == 1)
        )
        series.append(
            {"name": spoken(name), "colour": colour, "values": [values.get(s) for s in steps], "y": [places.get(s) for s in steps]}
        )
    return Chart(
        id=id_,
        title=title,
        note=f"{note}; each point is the mean of {size} steps" if size > 1 else note,
        stacked=stacked,
        x_ticks=tuple(Tick(at=axes.x(t), label=number(t)) for t in nice_ticks(axes.first, axes.last, 5) if t == int(t)),
        y_ticks=tuple(Tick(at=axes.y(t), label=number(t)) for t in nice_ticks(low, high, 4)),
        bands=_bands(found, axes),
        curves=tuple(curves),
        hover={"steps": steps, "x": [axes.x(step) for step in steps], "series": series},
    )


def _extent(values: Sequence[float], *, from_zero: bool) -> tuple[float, float]:
    """Range of the value axis: with zero when that costs little, never empty."""
    low, high = min(values), max(values)
    if from_zero:
        return 0.0, 1.06 * high or 1.0
    if 0 <= low < 0.6 * high or (low == high and low > 0):
        low = 0.0
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if low == 0 else low - pad), high + pad


def _stack(drawn: Mapping[str, Points]) -> dict[str, Points]:
    """The top edge of each series: the sum of it and those before it."""
    out: dict[str, Points] = {}
    floor = [0.0] * len(next(iter(drawn.values())))
    for name, points in drawn.items():
        floor = [low + value for low, (_, _, value) in zip(floor, points, strict=True)]
        out[name] = [(step, stage, top) for (step, stage, _), top in zip(points, floor, strict=True)]
    return out


def _bands(found: Mapping[str, Points], axes: _Axes) -> tuple[Band, ...]:
    """The range of steps of each stage."""
    steps: dict[str, list[int]] = {}
    for points in found.values():
        for step, stage, _ in points:
            steps.setdefault(stage, []).append(step)
    ends = sorted((min(own), max(own), stage) for stage, own in steps.items())
    return tuple(Band(name=stage, x0=axes.x(low), x1=axes.x(high)) for low, high, stage in ends)


def _line(points: Points, axes: _Axes) -> str:
    """Path of a line; a value that is not finite interrupts it, a point without a neighbour is a dot (a line of no length)."""
    out: list[str] = []
    run: list[str] = []
    for step, _, value in [*points, (0, "", math.nan)]:
        if math.isfinite(value):
            run.append(f"{axes.x(step):g} {axes.y(value):g}")
        elif run:
            out.append(f"M{'L'.join(run)}{'l0 0' if len(run) == 1 else ''}")
            run = []
    return "".join(out)


def _area(top: Points, floor: Mapping[int, float], axes: _Axes) -> str:
    """Closed path: along the top and back along the bottom. A single step becomes a bar of one unit."""
    corners = [(axes.x(step), axes.y(floor[step]), axes.y(v)) for step, _, v in top]
    if len(corners) == 1:
        (at, low, up) = corners[0]
        corners = [(round(at - 0.5, 2), low, up), (round(at + 0.5, 2), low, up)]
    way = [(at, up) for at, _, up in corners] + [(at, low) for at, low, _ in reversed(corners)]
    return "M" + "L".join(f"{at:g} {height:g}" for at, height in way) + "Z"
