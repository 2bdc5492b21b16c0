"""Geometry of curves: ticks, bins, gaps, and points where they belong."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.evals.pages.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MAX_POINTS,
    RIGHT,
    TOP,
    WIDTH,
    binned,
    charts,
    matching,
    nice_ticks,
    number,
    points_of,
    smoothed,
)


def lines(values, name="reward", stage="rl"):
    return [{"stage": stage, "global_step": n + 1, name: v} for n, v in enumerate(values)]


def test_places_by_hand():
    (chart,) = charts(lines([0.0, 1.0, 0.5], "kl"), prefix="p")
    assert chart.title == "Divergence from the reference"
    assert chart.hover["steps"] == [1, 2, 3]
    assert chart.hover["x"] == [LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT]
    (series,) = chart.hover["series"]
    low, high = 0.0, 1.06  # zero is the floor; 6% of the range above the top
    expected = [HEIGHT - BOTTOM - (v - low) / (high - low) * (HEIGHT - TOP - BOTTOM) for v in (0.0, 1.0, 0.5)]
    assert series["y"] == pytest.approx(expected, abs=0.01)
    assert series["values"] == ["0", "1", "0.5"]
    assert chart.curves[0].bold == "M{:g} {:g}L{:g} {:g}L{:g} {:g}".format(
        *(v for pair in zip(chart.hover["x"], series["y"], strict=True) for v in pair)
    )
    assert chart.curves[0].last == "0.5"


def test_gaps_and_lonely_points():
    nan = math.nan
    (chart,) = charts(lines([1.0, 2.0, nan, 3.0, nan, math.inf, 4.0, 5.0]), prefix="p")
    curve = chart.curves[0]
    assert curve.bold.count("M") == 3
    assert len(curve.dots) == 1
    assert chart.hover["series"][0]["values"] == ["1", "2", None, "3", None, None, "4", "5"]
    assert curve.last == "5"
    assert charts(lines([nan, math.inf]), prefix="p") == []


def test_lines_do_not_cross_from_stage_to_stage():
    both = lines([1.0, 2.0], "loss", "sft") + [line | {"global_step": line["global_step"] + 2} for line in lines([3.0, 4.0], "loss", "rl")]
    (chart,) = charts(both, prefix="p")
    assert chart.curves[0].bold.count("M") == 2
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
    (chart,) = charts(lines([float(n % 7) for n in range(3 * MAX_POINTS)], "lr"), prefix="p")
    assert chart.note == "each point is the mean of 3 steps"
    assert len(chart.hover["steps"]) == MAX_POINTS
    # Exceptions are left out of a mean, and a bin of nothing else is a gap.
    rough = [(0, "rl", 1.0), (1, "rl", math.nan), (2, "rl", math.nan), (3, "rl", math.nan)]
    assert binned(rough, 2)[0][2] == 1.0
    assert math.isnan(binned(rough, 2)[1][2])


def test_running_mean():
    assert smoothed([1.0, 2.0, 6.0, 3.0, 4.0], 3) == pytest.approx([1.0, 3.0, 11 / 3, 13 / 3, 4.0])
    assert smoothed([1.0, 2.0], 1) == [1.0, 2.0]
    out = smoothed([1.0, math.nan, 3.0], 3)
    assert (out[0], out[2]) == (1.0, 3.0)
    assert math.isnan(out[1])


def test_single_faults_are_not_smeared():
    values = [0.0] * 100
    values[50] = 1.0
    (faults,) = charts(lines(values, "fault/reward/timeout"), prefix="p")
    (reward,) = charts(lines(values), prefix="p")
    assert faults.curves[0].faint == ""
    assert reward.curves[0].faint != ""


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
        text = " ".join([c.bold + c.faint for c in chart.curves])
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
