"""Stacked charts: every area begins where the one below ends, and the top edge is the whole."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.evals.pages.charts import BOTTOM, HEIGHT, LEFT, MAX_POINTS, RIGHT, TOP, WIDTH
from vlmrl.evals.pages.stacked import REST, phase_series, stacked_charts, token_series
from vlmrl.evals.pages.timeshare import step_phases


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


def test_places_by_hand() -> None:
    lines = [{"global_step": n, "stage": "rl", "tokens/forward": 100.0 * n, "tokens/saved": 50.0} for n in (1, 2)]
    (chart,) = stacked_charts(lines, prefix="p")
    assert (chart.id, chart.names) == ("p-tokens", ("tokens/forward", "tokens/saved"))
    high = 250 * 1.06
    y = [HEIGHT - BOTTOM - v / high * (HEIGHT - TOP - BOTTOM) for v in (0, 100, 200, 150, 250)]
    left, right = LEFT, WIDTH - RIGHT
    forward, saved = (corners(curve.area)[0] for curve in chart.curves)
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
    (chart,) = stacked_charts(lines, prefix="p")
    two, one = corners(chart.curves[0].area)
    assert len(two) == len(one) == 4
    assert max(x for x, _ in one) - min(x for x, _ in one) == 1.0
    assert [band.name for band in chart.bands] == ["sft", "rl"]


def test_nothing_to_draw() -> None:
    assert stacked_charts([], prefix="p") == []
    assert stacked_charts([{"global_step": 1, "stage": "rl", "tokens/forward": 3.0}], prefix="p") == []
    assert token_series([{"global_step": 1, "stage": "rl", "loss": 3.0}]) == {}
    (chart,) = stacked_charts([line(5, 0.0)], prefix="p")
    assert corners(chart.curves[0].area)


@given(st.lists(st.lists(st.floats(0, 1e4), min_size=3, max_size=3), min_size=2, max_size=30))
def test_areas_meet_and_stay_in_the_plot(values: list[list[float]]) -> None:
    lines = [line(n + 1, sum(v) + 1.0, a=v[0], b=v[1], c=v[2]) for n, v in enumerate(values)]
    (chart,) = stacked_charts(lines, prefix="p")
    assert len(chart.curves) == 4
    n = len(values)
    areas = [corners(curve.area)[0] for curve in chart.curves]
    for below, above in pairwise(areas):
        assert below[:n] == above[: n - 1 : -1], "an area begins on the top edge of the one below"
    for x, y in (corner for area in areas for corner in area):
        assert LEFT <= x <= WIDTH - RIGHT
        assert TOP <= y <= HEIGHT - BOTTOM


def test_long_runs_are_binned_together() -> None:
    lines = [line(n + 1, 2.0, a=float(n % 2)) for n in range(2 * MAX_POINTS)]
    (chart,) = stacked_charts(lines, prefix="p")
    assert "mean of 2 steps" in chart.note
    assert len(chart.hover["steps"]) == MAX_POINTS
    assert set(chart.hover["series"][0]["values"]) == {"0.5"}
    assert {name: len(points) for name, points in phase_series(lines).items()} == {"a": 2 * MAX_POINTS, "unexplained": 2 * MAX_POINTS}
