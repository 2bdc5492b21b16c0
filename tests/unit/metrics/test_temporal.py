"""metrics.temporal: intersection over union, recall, and reading a time span from what a model writes."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.temporal import parse_time_span, temporal_iou

IOUS = [0.890625, 1 / 3, 0, 0.6, 1 / 3]


@pytest.mark.parametrize(
    ("pred", "gt", "iou"),
    [
        ((5, 15), (10, 20), 1 / 3),
        ((0, 5), (10, 20), 0),
        ((12, 18), (10, 20), 0.6),
        ((10, 10), (10, 20), 0),
        ((0, 5), (0, 10), 0.5),
        ((24.3, 30.4), (24, 30), 0.890625),
        ((12.54, 17.83), (12.5, 17.8), 0.986867),
        ((0, 30), (5, 15), 1 / 3),
        ((2, 2), (2, 2), 0),
        ((7, 23), (7.2, 12.0), 0.3),
    ],
)
def test_temporal_iou(pred, gt, iou):
    assert temporal_iou(pred, gt, sort_times=False) == pytest.approx(iou, abs=1e-6)
    assert temporal_iou(gt, pred, sort_times=True) == pytest.approx(iou, abs=1e-6)


def test_a_reversed_prediction():
    assert temporal_iou((20, 10), (10, 20), sort_times=True) == 1
    assert temporal_iou((20, 10), (10, 20), sort_times=False) == 0


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("12.5 to 17.8", (12.5, 17.8)),
        ("12.5s - 17.8s", (12.5, 17.8)),
        ("00:12.5 - 00:17.8", (12.5, 17.8)),
        ('{"time":[12.5,17.8]}', (12.5, 17.8)),
        ("from 12.5 to 17.8 seconds", (12.5, 17.8)),
        ("1:02:03 - 1:02:10", (3723, 3730)),
        ("First 1 to 2, no: 3\n to 5.", (3, 5)),
        ("between 3 seconds and 5 seconds", (3, 5)),
        ("9 to 4", (9, 4)),
        ("3.3333333333333335 to 5.0", (3.3333333333333335, 5.0)),
        ("12.5", None),
        ("none", None),
        ("", None),
        ("1234567890123", None),
    ],
)
def test_parse_time_span(text, span):
    assert parse_time_span(text) == span


@pytest.mark.parametrize(
    "text", ['{"time": [NaN, 3]}', '{"time": [1e999, -1e999]}', '{"time": [' + "9" * 400 + ", 2]}", '{"a":' + "[" * 4000, "1:" * 3000]
)
def test_hostile_text_gives_no_infinite_span_and_no_error(text):
    span = parse_time_span(text)
    assert span is None or all(abs(t) < 1e10 for t in span)


def test_round_trip_of_random_spans():
    state = 1
    for _ in range(1000):
        state = state * 48271 % (2**31 - 1)
        start = state % 100000 / 100
        end = start + 0.01 + state % 977 / 100
        span = parse_time_span(f"{start:.2f} to {end:.2f}")
        assert span == (float(f"{start:.2f}"), float(f"{end:.2f}"))


@given(text=st.text(alphabet="0123456789:.-to {}[],\n", max_size=60))
def test_never_raises_and_always_finite(text):
    span = parse_time_span(text)
    assert span is None or all(t == t and abs(t) < sys.float_info.max for t in span)


@pytest.mark.parametrize("piece", ["1", "1:", "1.", "1 to ", "{", "[", "1 - ", "\n", " ", '{"time":[1,'])
def test_only_the_end_of_a_long_text_is_read(piece):
    tail = " so 3.0 to 5.0"
    assert parse_time_span(piece * 65536 + tail) == (3.0, 5.0)
