"""Frames, axis orders and time units: numbers by hand, and round trips."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.answers.coordinates import Axis, convert_box, convert_point, convert_span, convert_time, plain
from vlmrl.errors import RowError
from vlmrl.types import CoordinateFrame


@pytest.mark.parametrize(
    ("values", "frame", "axis", "target", "expected"),
    [
        ([10, 20, 110, 220], "pixel", None, "norm1000", [25, 66.67, 275, 733.33]),  # of a picture of 400 x 300
        ([10, 20, 110, 220], "pixel", None, "pixel", [10, 20, 110, 220]),
        ([20, 10, 220, 110], "pixel", "yxyx", "pixel", [10, 20, 110, 220]),
        ([10, 20, 100, 200], "pixel", "xywh", "pixel", [10, 20, 110, 220]),
        ([0.1, 0.2, 0.5, 1.0], "norm1", None, "norm1000", [100, 200, 500, 1000]),
        ([0.1, 0.2, 0.5, 1.0], "norm1", None, "pixel", [40, 60, 200, 300]),
        ([100, 200, 500, 1000], "norm1000", "xyxy", "pixel", [40, 60, 200, 300]),
        ([-0.4, 0, 400.4, 300.5], "pixel", None, "pixel", [0, 0, 400, 300]),  # a rounding error beyond the edge
    ],
)
def test_boxes(values: list[float], frame: CoordinateFrame, axis: Axis | None, target: Any, expected: list[float]) -> None:
    assert convert_box(values, frame=frame, axis=axis, target=target, size=(400, 300)) == expected


@pytest.mark.parametrize(
    ("values", "frame", "axis", "reason"),
    [
        ([10, 20, 110, 220], None, None, "frame"),  # fits pixels and thousandths
        ([0.1, 0.2, 0.5, 0.6], None, None, "frame"),
        ([10, 20, 401, 220], "pixel", None, "frame"),
        ([10, 20, 110, 220], "norm1", None, "frame"),
        ([10, 20, 110, 1002], "norm1000", None, "frame"),
        ([-1, 20, 110, 220], "pixel", None, "frame"),
        ([110, 20, 10, 220], "pixel", None, "bad_value"),
        ([10, 20, 10, 220], "pixel", None, "bad_value"),
        ([10, 20, 0, 5], "pixel", "xywh", "bad_value"),
        ([350, 20, 100, 50], "pixel", "xywh", "frame"),  # leaves the picture: corners given as sizes
        ([1, 2, 3], "pixel", None, "bad_type"),
        ([1, 2, 3, "4"], "pixel", None, "bad_type"),
        ([1, 2, 3, True], "pixel", None, "bad_type"),
        ("1,2,3,4", "pixel", None, "bad_type"),
        ([1, 2, 3, float("nan")], "pixel", None, "not_finite"),
        ([0.5, 0.5, 0.500001, 0.9], "norm1", None, "bad_value"),  # no area left at two decimals
    ],
)
def test_refused_boxes(values: Any, frame: CoordinateFrame | None, axis: Axis | None, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        convert_box(values, frame=frame, axis=axis, target="norm1000", size=(400, 300))
    assert caught.value.reason == reason


@pytest.mark.parametrize(("frame", "target"), [("pixel", "norm1000"), ("norm1", "pixel"), ("pixel", "pixel")])
def test_pixels_need_the_size_of_the_picture(frame: CoordinateFrame, target: Any) -> None:
    with pytest.raises(RowError, match="size of the picture"):
        convert_box([0.1, 0.1, 0.5, 0.5], frame=frame, axis=None, target=target)


def test_normalised_boxes_need_no_size() -> None:
    assert convert_box([0.25, 0, 1, 0.5], frame="norm1", axis=None, target="norm1000") == [250, 0, 1000, 500]


def test_points() -> None:
    assert convert_point([40, 60], frame="pixel", axis=None, target="norm1000", size=(400, 300)) == [100, 200]
    assert convert_point([60, 40], frame="pixel", axis="yxyx", target="norm1000", size=(400, 300)) == [100, 200]
    with pytest.raises(RowError) as caught:
        convert_point([40, 60], frame=None, axis=None, target="norm1000")
    assert caught.value.reason == "frame"


corners = st.tuples(st.integers(0, 3999), st.integers(1, 4000)).map(sorted).filter(lambda p: p[1] - p[0] >= 2)


@given(corners, corners)
def test_pixels_survive_the_way_to_thousandths_and_back(x: list[int], y: list[int]) -> None:
    box, size = [x[0], y[0], x[1], y[1]], (4000.0, 4000.0)
    there = convert_box(box, frame="pixel", axis=None, target="norm1000", size=size)
    back = convert_box(there, frame="norm1000", axis=None, target="pixel", size=size)
    assert all(abs(a - b) < 0.5 for a, b in zip(back, box, strict=True))


@given(corners, corners)
def test_axis_orders_say_the_same_box(x: list[int], y: list[int]) -> None:
    x1, y1, x2, y2 = x[0], y[0], x[1], y[1]
    forms: dict[Axis, list[int]] = {"xyxy": [x1, y1, x2, y2], "yxyx": [y1, x1, y2, x2], "xywh": [x1, y1, x2 - x1, y2 - y1]}
    found = {tuple(convert_box(v, frame="pixel", axis=a, target="pixel", size=(4000, 4000))) for a, v in forms.items()}
    assert found == {(x1, y1, x2, y2)}


@pytest.mark.parametrize(
    ("value", "unit", "fps", "seconds"),
    [
        (12.5, "s", None, 12.5),
        ("12.5", "s", None, 12.5),
        (12500, "ms", None, 12.5),
        (100, "frames", 30.0, 3.33),
        ("1:02.5", None, None, 62.5),
        ("01:00:02", None, None, 3602.0),
        ("12.5 s", None, None, 12.5),
        ("7seconds", "ms", None, 7.0),  # its own unit counts
        ("00:05", "mm:ss", None, 5.0),
        (0, "s", None, 0.0),
    ],
)
def test_times(value: Any, unit: Any, fps: float | None, seconds: float) -> None:
    assert convert_time(value, unit=unit, fps=fps) == seconds


@pytest.mark.parametrize(
    ("value", "unit", "fps", "reason"),
    [
        (12.5, None, None, "time_unit"),
        ("12.5", None, None, "time_unit"),
        (12.5, "mm:ss", None, "time_unit"),
        (12, "frames", None, "time_unit"),
        (-1, "s", None, "bad_value"),
        (float("inf"), "s", None, "bad_value"),
        (True, "s", None, "bad_type"),
        (None, "s", None, "bad_type"),
        ("soon", "s", None, "bad_value"),
        ("1:75", "s", None, "bad_value"),
        ("1:75:00", "s", None, "bad_value"),
    ],
)
def test_refused_times(value: Any, unit: Any, fps: float | None, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        convert_time(value, unit=unit, fps=fps)
    assert caught.value.reason == reason


def test_spans() -> None:
    assert convert_span([90, 150], unit="frames", fps=30.0) == [3.0, 5.0]
    assert convert_span(["0:03", "0:05.25"], unit=None) == [3.0, 5.25]
    for bad, reason in (([5, 3], "bad_value"), ([3, 3.004], "bad_value"), ([3], "bad_type"), ("3 5", "bad_type"), (None, "bad_type")):
        with pytest.raises(RowError) as caught:
            convert_span(bad, unit="s")
        assert caught.value.reason == reason


def test_plain() -> None:
    assert [repr(plain(v)) for v in (3.0, 3.5, 0.0)] == ["3", "3.5", "0"]
