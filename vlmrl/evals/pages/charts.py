"""Curves of a run as plain geometry: what to draw is decided here, the drawing is inline SVG in the report's template.

Coordinates are in the units of the SVG's view box. Nothing here knows HTML, so nothing here has to be escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

WIDTH, HEIGHT = 380, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 22
"""Margins around the plot."""
MAX_POINTS = 400
"""Longer curves are drawn as means of consecutive steps."""
COLOURS = ("#2b5c8a", "#c0652a", "#3f8467", "#80619c", "#a98a2e", "#9b4f5d", "#5b6b78")

GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Reward", "mean over sampled answers: the sum, and its parts before weighting", ("reward", "rewards/*/mean")),
    ("Answer length", "tokens per sampled answer", ("completions/mean_length",)),
    (
        "Form of the answers",
        "share of sampled answers",
        ("completions/think_rate", "completions/parse_rate", "completions/format_rate", "completions/clipped_ratio"),
    ),
    (
        "Groups without signal",
        "share of groups whose rewards are all equal, and of rows left out by filters",
        ("frac_reward_zero_std", "filter/*"),
    ),
    ("Spread of the reward", "standard deviation within groups", ("reward_std",)),
    ("Loss", "", ("loss",)),
    ("Divergence from the reference", "KL, nats per token", ("kl",)),
    ("Entropy", "nats per token", ("entropy",)),
    ("Gradient norm", "before clipping", ("grad_norm",)),
    ("Clipped ratios", "share of tokens outside the trust region", ("clip_ratio", "clip_ratio/*")),
    ("Gap between sampler and trainer", "mean absolute difference of log-probabilities", ("sampling/logp_gap",)),
    ("Learning rate", "", ("lr",)),
    ("Faults", "counts", ("fault/*",)),
    ("Memory", "MiB: resident at most so far; on the accelerator at most within the step", ("memory/*",)),
)
"""Title, note, and names of the metrics (`*` stands for any text) of each chart. A chart without data is not drawn."""

UNSMOOTHED = ("fault/", "lr", "memory/")
"""Metrics of which single steps matter, or that have no noise."""


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
    """One metric. Paths are SVG path data; `faint` holds single steps, `bold` their running mean (or the steps, when few)."""

    name: str
    colour: str
    faint: str
    bold: str
    dots: tuple[tuple[float, float], ...]
    """Points without a neighbour, which a path would not show."""
    last: str
    """Newest value, for the legend."""
    area: str = ""
    """Path of a filled area, in charts that stack their series; they have no other paths."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One panel."""

    id: str
    title: str
    note: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    bands: tuple[Band, ...]
    curves: tuple[Curve, ...]
    hover: Mapping[str, Any]
    """JSON values for the tooltip: `steps`, `x` (their places), and per curve `name`, `colour`, `values`, `y`."""
    names: tuple[str, ...]
    """Metric names drawn."""


Points = list[tuple[int, str, float]]
"""(global step, stage, value) in the order of the file."""
Placed = TypeVar("Placed", bound=tuple[int, str, Any])
"""Anything at a step of a stage."""


def charts(lines: Sequence[Mapping[str, Any]], *, prefix: str) -> list[Chart]:
    """Every panel of `GROUPS` that has a finite value in `lines`. `prefix` makes the ids unique in a page."""
    out: list[Chart] = []
    for number, (title, note, patterns) in enumerate(GROUPS):
        found = {name: points_of(lines, name) for name in matching(lines, patterns)}
        found = {name: points for name, points in found.items() if any(math.isfinite(v) for _, _, v in points)}
        if found:
            out.append(_chart(f"{prefix}-{number}", title, note, found))
    return out


def matching(lines: Iterable[Mapping[str, Any]], patterns: Sequence[str]) -> list[str]:
    """Names in `lines` that fit a pattern, in the order of the patterns and then by name."""
    names = sorted({name for line in lines for name in line})
    compiled = [re.compile(".+".join(map(re.escape, pattern.split("*")))) for pattern in patterns]
    return list(dict.fromkeys(name for pattern in compiled for name in names if pattern.fullmatch(name)))


def points_of(lines: Iterable[Mapping[str, Any]], name: str) -> Points:
    """The values of one metric."""
    return [(int(line["global_step"]), str(line["stage"]), float(line[name])) for line in lines if name in line]


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


def by_stage(points: Sequence[Placed]) -> list[list[Placed]]:
    """Consecutive points of one stage."""
    out: list[list[Placed]] = []
    for point in points:
        if not out or out[-1][-1][1] != point[1]:
            out.append([])
        out[-1].append(point)
    return out


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Centred running mean over `window` (odd) finite values; narrower at the ends, NaN where the value itself is not finite."""
    half = window // 2
    out: list[float] = []
    for i, value in enumerate(values):
        reach = min(half, i, len(values) - 1 - i)
        near = [v for v in values[i - reach : i + reach + 1] if math.isfinite(v)]
        out.append(sum(near) / len(near) if math.isfinite(value) else math.nan)
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


def _extent(values: Sequence[float]) -> tuple[float, float]:
    """Range of the value axis: with zero when that costs little, never empty."""
    low, high = min(values), max(values)
    if 0 <= low < 0.6 * high:
        low = 0.0
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if low == 0 else low - pad), high + pad


def _chart(id_: str, title: str, note: str, found: Mapping[str, Points]) -> Chart:
    drawn = {name: binned(points, MAX_POINTS) for name, points in found.items()}
    size = max(-(-len(points) // MAX_POINTS) for points in found.values())
    if size > 1:
        note = f"{note}; each point is the mean of {size} steps" if note else f"each point is the mean of {size} steps"
    steps = sorted({step for points in drawn.values() for step, _, _ in points})
    low, high = _extent([v for points in drawn.values() for _, _, v in points if math.isfinite(v)])
    first, last = steps[0], max(steps[-1], steps[0] + 1)

    def x(step: float) -> float:
        return round(LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT), 2)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 2)

    curves: list[Curve] = []
    series: list[dict[str, Any]] = []
    for n, (name, points) in enumerate(drawn.items()):
        colour = COLOURS[n % len(COLOURS)]
        finite = {step: value for step, _, value in points if math.isfinite(value)}
        curves.append(_curve(name, colour, points, x, y))
        shown = [finite.get(step) for step in steps]
        series.append(
            {
                "name": name,
                "colour": colour,
                "values": [None if v is None else number(v) for v in shown],
                "y": [None if v is None else y(v) for v in shown],
            }
        )
    return Chart(
        id=id_,
        title=title,
        note=note,
        x_ticks=tuple(Tick(at=x(t), label=number(t)) for t in nice_ticks(first, last, 5) if t == int(t)),
        y_ticks=tuple(Tick(at=y(t), label=number(t)) for t in nice_ticks(low, high, 4)),
        bands=bands_of(found, x),
        curves=tuple(curves),
        hover={"steps": steps, "x": [x(step) for step in steps], "series": series},
        names=tuple(found),
    )


def bands_of(found: Mapping[str, Points], x: Any) -> tuple[Band, ...]:
    """The range of steps of each stage; `x` maps a step to its place."""
    ends: dict[str, tuple[int, int]] = {}
    for points in found.values():
        for step, stage, _ in points:
            low, high = ends.get(stage, (step, step))
            ends[stage] = (min(low, step), max(high, step))
    ordered = sorted(ends.items(), key=lambda item: item[1])
    return tuple(Band(name=name, x0=x(low), x1=x(high)) for name, (low, high) in ordered)


def _curve(name: str, colour: str, points: Points, x: Any, y: Any) -> Curve:
    faint: list[str] = []
    bold: list[str] = []
    dots: list[tuple[float, float]] = []
    for segment in by_stage(points):
        values = [v for _, _, v in segment]
        window = 1 if name.startswith(UNSMOOTHED) else 2 * (len(segment) // 50) + 1
        places = [x(step) for step, _, _ in segment]
        raw = [(px, y(v)) if math.isfinite(v) else None for px, v in zip(places, values, strict=True)]
        dots += _alone(raw)
        if window > 1:
            faint.append(_path(raw))
            bold.append(_path([(px, y(v)) if math.isfinite(v) else None for px, v in zip(places, smoothed(values, window), strict=True)]))
        else:
            bold.append(_path(raw))
    newest = next(v for _, _, v in reversed(points) if math.isfinite(v))
    return Curve(name=name, colour=colour, faint="".join(faint), bold="".join(bold), dots=tuple(dots), last=number(newest))


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """SVG path data; None interrupts the line."""
    out: list[str] = []
    pen_up = True
    for point in points:
        if point is not None:
            out.append(f"{'M' if pen_up else 'L'}{point[0]:g} {point[1]:g}")
        pen_up = point is None
    return "".join(out)


def _alone(points: Sequence[tuple[float, float] | None]) -> list[tuple[float, float]]:
    around = [None, *points, None]
    return [p for before, p, after in zip(around, points, around[2:], strict=False) if p is not None and before is None and after is None]
