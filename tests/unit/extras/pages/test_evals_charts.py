"""Geometry of charts: ticks, bins, gaps, points where they belong; every area begins where the one below ends."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.evals.score.timeshare import step_phases
from vlmrl.extras.pages.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MAX_POINTS,
    REST,
    RIGHT,
    TOP,
    WIDTH,
    binned,
    charts,
    matching,
    nice_ticks,
    number,
    phase_series,
    points_of,
    spoken,
)


def lines(values, name="reward", stage="rl"):
    return [{"stage": stage, "global_step": n + 1, name: v} for n, v in enumerate(values)]


def test_places_by_hand():
    (chart,) = charts(lines([0.0, 1.0, 0.5]), prefix="p")
    assert chart.title == "Reward"
    assert chart.hover["steps"] == [1, 2, 3]
    assert chart.hover["x"] == [LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT]
    (series,) = chart.hover["series"]
    low, high = 0.0, 1.06  # zero is the floor; 6% of the range above the top
    expected = [HEIGHT - BOTTOM - (v - low) / (high - low) * (HEIGHT - TOP - BOTTOM) for v in (0.0, 1.0, 0.5)]
    assert series["y"] == pytest.approx(expected, abs=0.01)
    assert series["values"] == ["0", "1", "0.5"]
    assert chart.curves[0].path == "M{:g} {:g}L{:g} {:g}L{:g} {:g}".format(
        *(v for pair in zip(chart.hover["x"], series["y"], strict=True) for v in pair)
    )
    assert chart.curves[0].last == "0.5"


def test_a_curve_for_each_kind_of_question_that_a_step_had():
    steps = [{"hard": 0.5, "easy": 0.25}, {"hard": 0.75}]
    found = [
        {"stage": "rl", "global_step": n + 1, "completions/think_rate": 0.5, **{f"completions/think_rate/{k}": v for k, v in step.items()}}
        for n, step in enumerate(steps)
    ]
    form, thoughts = charts(found, prefix="p")
    assert [curve.name for curve in form.curves] == ["with thought"]
    assert thoughts.title == "Thoughts by kind of question"
    assert [(curve.name, curve.last) for curve in thoughts.curves] == [
        ("easy", "0.25"),
        ("hard", "0.75"),
    ]


def test_gaps_and_lonely_points():
    nan = math.nan
    (chart,) = charts(lines([1.0, 2.0, nan, 3.0, nan, math.inf, 4.0, 5.0]), prefix="p")
    curve = chart.curves[0]
    assert curve.path.count("M") == 3
    assert curve.path.count("l0 0") == 1
    assert chart.hover["series"][0]["values"] == ["1", "2", None, "3", None, None, "4", "5"]
    assert curve.last == "5"
    assert charts(lines([nan, math.inf]), prefix="p") == []


def test_lines_do_not_cross_from_stage_to_stage():
    both = lines([1.0, 2.0], stage="sft") + [line | {"global_step": line["global_step"] + 2} for line in lines([3.0, 4.0])]
    (chart,) = charts(both, prefix="p")
    assert chart.curves[0].path.count("M") == 2
    assert [band.name for band in chart.bands] == ["sft", "rl"]
    assert chart.bands[0].x1 < chart.bands[1].x0


def test_long_curves_are_means_of_consecutive_steps():
    points = [(n, "rl", float(n)) for n in range(1000)]
    out = binned(points, 400)
    assert len(out) == 334
    assert out[0] == (2, "rl", 1.0)
    assert out[1] == (5, "rl", 4.0)
    assert out[-1] == (999, "rl", 999.0)
    assert binned(points[:400], 400) == points[:400]
    (chart,) = charts(lines([float(n % 7) for n in range(3 * MAX_POINTS)]), prefix="p")
    assert chart.note.endswith("before weighting; each point is the mean of 3 steps")
    assert len(chart.hover["steps"]) == MAX_POINTS
    # Exceptions are left out of a mean, and a bin of nothing else is a gap.
    rough = [(0, "rl", 1.0), (1, "rl", math.nan), (2, "rl", math.nan), (3, "rl", math.nan)]
    assert binned(rough, 2)[0][2] == 1.0
    assert math.isnan(binned(rough, 2)[1][2])


def test_names_of_a_group():
    rows = [{"rewards/a/mean": 1, "rewards/b/mean": 1, "rewards/a/std": 1, "reward": 1, "reward_std": 1}]
    assert matching(rows, ("reward", "rewards/*/mean")) == ["reward", "rewards/a/mean", "rewards/b/mean"]
    assert points_of([{"global_step": 3, "stage": "s", "x": 1}, {"global_step": 4, "stage": "s"}], "x") == [(3, "s", 1.0)]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (3, 47, [10, 20, 30, 40]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (5, 5, [5]),
    ],
)
def test_ticks(low, high, expected):
    assert nice_ticks(low, high, 5) == pytest.approx(expected)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 9))
def test_ticks_are_few_and_within(low, width, count):
    ticks = nice_ticks(low, low + width, count)
    assert len(ticks) <= count + 1 + (low + width == low)
    assert all(low - 1e-6 * abs(low) - 1e-6 * width <= t <= low + width * (1 + 1e-6) + 1e-6 * abs(low) for t in ticks)


@given(st.lists(st.floats(-1e30, 1e30) | st.just(math.nan), min_size=1, max_size=40))
def test_everything_drawn_is_inside_the_plot(values):
    for chart in charts(lines(values), prefix="p"):
        text = " ".join(c.path for c in chart.curves)
        for x, y in re.findall(r"[ML]([-\d.e+]+) ([-\d.e+]+)", text):
            assert LEFT <= float(x) <= WIDTH - RIGHT
            assert TOP - 0.01 <= float(y) <= HEIGHT - BOTTOM + 0.01


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (1e-5, "1.00e-5"),
        (12345.0, "12,345"),
        (2.5e7, "2.50e7"),
        (0.12345, "0.123"),
        (math.inf, "inf"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


# ------------------------------------------------------------------------------------------------------------- stacks


def line(step: int, total: float, stage: str = "rl", **phases: float) -> dict[str, Any]:
    return {"global_step": step, "stage": stage, "time/step_total": total} | {f"time/{name}": s for name, s in phases.items()}


def corners(path: str) -> list[list[tuple[float, float]]]:
    """The corners of each closed area."""
    assert path.count("M") == path.count("Z")
    return [[tuple(map(float, pair.split())) for pair in re.split("[ML]", part) if pair] for part in path.split("Z") if part]


def test_phases_of_a_step_by_hand() -> None:
    lines = [
        line(1, 4.0, rollout=2.0, score=0.5) | {"time/to_first_rl_step": 9.0},
        line(2, 3.0, rollout=3.5),  # clocks round: never less than nothing is unexplained
        {"global_step": 2, "stage": "rl", "eval/miou": 0.5},
        line(2, 60.0, stage="run", evaluate=20.0),
    ]
    assert step_phases(lines) == [
        (1, "rl", {"rollout": 2.0, "score": 0.5, "unexplained": 1.5}),
        (2, "rl", {"rollout": 3.5, "unexplained": 0.0}),
    ]
    assert phase_series(lines) == {
        "rollout": [(1, "rl", 2.0), (2, "rl", 3.5)],
        "score": [(1, "rl", 0.5), (2, "rl", 0.0)],
        "unexplained": [(1, "rl", 1.5), (2, "rl", 0.0)],
    }


def test_many_phases_share_the_last_area() -> None:
    phases = {f"p{n}": float(10 - n) for n in range(8)}
    series = phase_series([line(1, 60.0, **phases)])
    assert list(series) == ["p0", "p1", "p2", "p3", "p4", REST, "unexplained"]
    assert series[REST] == [(1, "rl", 5.0 + 4.0 + 3.0)]
    assert series["unexplained"] == [(1, "rl", 60.0 - sum(phases.values()))]
    six = phase_series([line(1, 60.0, **{name: s for name, s in phases.items() if name < "p6"})])
    assert list(six) == ["p0", "p1", "p2", "p3", "p4", "p5", "unexplained"]


def test_places_of_areas_by_hand() -> None:
    lines = [{"global_step": n, "stage": "rl", "tokens/forward": 100.0 * n, "tokens/saved": 50.0} for n in (1, 2)]
    (chart,) = charts(lines, prefix="p")
    assert (chart.id, chart.stacked, [c.name for c in chart.curves]) == ("p-tokens", True, ["computed", "saved by sharing"])
    high = 250 * 1.06
    y = [HEIGHT - BOTTOM - v / high * (HEIGHT - TOP - BOTTOM) for v in (0, 100, 200, 150, 250)]
    left, right = LEFT, WIDTH - RIGHT
    forward, saved = (corners(curve.path)[0] for curve in chart.curves)
    for found, expected in (
        (forward, [(left, y[1]), (right, y[2]), (right, y[0]), (left, y[0])]),
        (saved, [(left, y[3]), (right, y[4]), (right, y[2]), (left, y[1])]),
    ):
        assert [p for corner in found for p in corner] == pytest.approx([p for corner in expected for p in corner], abs=0.01)
    assert [s["values"] for s in chart.hover["series"]] == [["100", "200"], ["50", "50"]]
    assert chart.hover["series"][1]["y"] == pytest.approx([y[3], y[4]], abs=0.01)
    assert [curve.last for curve in chart.curves] == ["200", "50"]


def test_stages_have_areas_of_their_own_and_one_step_is_a_bar() -> None:
    lines = [line(1, 2.0, "sft", a=1.0), line(2, 2.0, "sft", a=1.0), line(3, 2.0, "rl", a=1.0)]
    (chart,) = charts(lines, prefix="p")
    two, one = corners(chart.curves[0].path)
    assert len(two) == len(one) == 4
    assert max(x for x, _ in one) - min(x for x, _ in one) == 1.0
    assert [band.name for band in chart.bands] == ["sft", "rl"]


def test_nothing_to_draw() -> None:
    assert charts([], prefix="p") == []
    assert charts([{"global_step": 1, "stage": "rl", "tokens/forward": 3.0}], prefix="p") == []
    assert charts([{"global_step": 1, "stage": "rl", "loss": 3.0}], prefix="p") == []
    (chart,) = charts([line(5, 0.0)], prefix="p")
    assert corners(chart.curves[0].path)


@given(st.lists(st.lists(st.floats(0, 1e4), min_size=3, max_size=3), min_size=2, max_size=30))
def test_areas_meet_and_stay_in_the_plot(values: list[list[float]]) -> None:
    lines = [line(n + 1, sum(v) + 1.0, a=v[0], b=v[1], c=v[2]) for n, v in enumerate(values)]
    (chart,) = charts(lines, prefix="p")
    assert len(chart.curves) == 4
    n = len(values)
    areas = [corners(curve.path)[0] for curve in chart.curves]
    for below, above in pairwise(areas):
        assert below[:n] == above[: n - 1 : -1], "an area begins on the top edge of the one below"
    for x, y in (corner for area in areas for corner in area):
        assert LEFT <= x <= WIDTH - RIGHT
        assert TOP <= y <= HEIGHT - BOTTOM


def test_stacks_of_long_runs_are_binned_together() -> None:
    lines = [line(n + 1, 2.0, a=float(n % 2)) for n in range(2 * MAX_POINTS)]
    (chart,) = charts(lines, prefix="p")
    assert "mean of 2 steps" in chart.note
    assert len(chart.hover["steps"]) == MAX_POINTS
    assert set(chart.hover["series"][0]["values"]) == {"0.5"}
    assert {name: len(points) for name, points in phase_series(lines).items()} == {"a": 2 * MAX_POINTS, "unexplained": 2 * MAX_POINTS}


def test_legends_say_metrics_in_words() -> None:
    names = {
        "reward": "sum",
        "rewards/temporal_iou/mean": "temporal iou",
        "filter/zero_std": "left out by zero std",
        "completions/think_rate/difficulty=easy": "easy",
        "eval/toy_desk/macro": "toy desk",
        "forward_backward": "forward backward",
    }
    assert {name: spoken(name) for name in names} == names


def test_evaluations_are_one_line_over_all_stages() -> None:
    """Three evaluations in two stages: one path of two segments; the score that repeats mIoU is left out, a single value is no line."""
    lines = [
        {"global_step": step, "stage": stage, "eval/miou": value, "eval/score": value, "eval/parse_rate": 1.0, "eval/r1@0.5": 0.1}
        for step, stage, value in ((0, "base", 0.2), (10, "sft", 0.4), (20, "rl", 0.9))
    ]
    chart = charts(lines, prefix="p")[0]
    assert (chart.title, [curve.name for curve in chart.curves]) == ("Held-out questions", ["mIoU", "readable"])
    assert chart.curves[0].path.count("M") == 1
    assert chart.curves[0].path.count("L") == 2
    assert [curve.flat for curve in chart.curves] == [False, True]
    assert charts(lines[:1], prefix="p") == []
