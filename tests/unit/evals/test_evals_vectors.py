"""Printed vectors that need several parts together: sizes of pictures and coordinates in them, and mathematics through the answer."""

from __future__ import annotations

import pytest

from tests.unit.evals.test_evals_records import make_record
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.evals.score.extraction import answer_of
from vlmrl.evals.score.summary import summarize
from vlmrl.media.resize import smart_resize
from vlmrl.metrics.math import equivalent
from vlmrl.metrics.temporal import parse_time_span, temporal_iou
from vlmrl.types import Sample

FACTOR, LEAST = 28, 56 * 56


@pytest.mark.parametrize(
    ("size", "max_pixels", "resized", "tokens"),
    [
        ((1920, 1080), 12845056, (1932, 1092), 2691),
        ((1920, 1080), 1003520, (1316, 728), 1222),
        ((1080, 2400), 12845056, (1092, 2408), 3354),
        ((1080, 2400), 1003520, (672, 1484), 1272),
        ((640, 480), 12845056, (644, 476), 391),
    ],
)
def test_sizes_that_the_model_sees(size: tuple[int, int], max_pixels: int, resized: tuple[int, int], tokens: int) -> None:
    """(width, height); one token is 28 x 28 pixels."""
    height, width = smart_resize(size[1], size[0], factor=FACTOR, min_pixels=LEAST, max_pixels=max_pixels)
    assert (width, height) == resized
    assert width * height // FACTOR**2 == tokens


MATH = [
    *[("1/2", "0.5", True), (r"$\sqrt8$", r"$2\sqrt2$", True), ("140°", "140", True), (r"$65^\circ$", "65°", True)],
    *[("$x^2-1$", "$(x-1)(x+1)$", True), ("{1,2}", "{2,1}", True), ("(1,2)", "(2,1)", False), ("[1,2]", "(1,2)", False)],
    *[("10%", "0.1", True), ("50%", "50", True), ("50%", "0.5", True), ("1{,}000", "1000", True)],
    *[(r"$\pi$", "3.14159", False), (r"$\pi$", "3.14", False), ("1/3", ".333", False), ("1/3", ".333333", True)],
    *[("x=5", "5", True), ("5", "x=5", True), (r"$5\sqrt3$", "8.66", False), (r"$5\sqrt3$", "8.660254", True)],
    *[("$1<x<2$", "(1,2)", True), ("(1,2)", "$1<x<2$", False), ("101", "100+1=101", True), ("100+1=101", "101", False)],
    *[(r"$4\sqrt2$", r"\boxed{4\sqrt 2}", True), (r"\boxed{4\sqrt 2}", r"$4\sqrt2$", True), ("a/b", "b/a", False), ("7", "", False)],
    *[("7", "first 5 then 7", True), ("7", "7 then 5", False), ("5", "7 then 5", True)],
    # Where the wrapper's rules give another answer than the library by itself: both sides are wrapped
    *[("$(1,2)$", "(1, 2)", True), (r"4 \sqrt{2}", "4", False), (r"$4 \sqrt{2}$", "4", False), (r"$4\sqrt2$", r"4\sqrt{2}", True)],
    *[("A", "A", True), ("A", "B", False)],
]


@pytest.mark.parametrize(("gold", "pred", "right"), MATH)
def test_mathematics_through_the_answer(gold: str, pred: str, right: bool) -> None:
    assert equivalent(pred, gold) is right
    row = Sample(id="q", task="t", answer_type="math", question="?", media=(), answer=gold, gt={})
    for text in (f"<think>maybe 5, or $x^9$</think><answer>{pred}</answer>", f"<think>maybe 5</think>{pred}"):
        answer = answer_of(text, "think_answer", "lenient")
        assert ANSWER_TYPES["math"].score(answer, row)[2] == {"exact": float(right)}


def test_a_number_in_the_thought_is_no_answer() -> None:
    raw = "<think>maybe 5</think><answer>7</answer>"
    assert not equivalent(raw, "7")  # what raw text would give
    assert equivalent(answer_of(raw, "think_answer", "strict") or "", "7")


def test_temporal_set_with_an_unreadable_answer() -> None:
    """The printed set, from text: what cannot be read is 0 and stays in the denominator."""
    rows = [
        ("24.3 to 30.4", (24, 30)),
        ("5 to 15", (10, 20)),
        ("I do not know", (10, 20)),
        ("12s - 18s", (10, 20)),
        ('{"time": [0, 30]}', (5, 15)),
    ]
    read = [(parse_time_span(text), gold) for text, gold in rows]
    ious = [0.0 if span is None else temporal_iou(span, gold, sort_times=True) for span, gold in read]
    means = summarize([make_record(str(n), scores={"tiou": v}) for n, v in enumerate(ious)], 0).means()
    assert means["miou"] == pytest.approx(0.431458, abs=1e-6)
    assert [means[f"r1@{t}"] for t in (0.3, 0.5, 0.7)] == [0.8, 0.4, 0.2]
    assert sum(span is not None for span, _ in read) / len(read) == 0.8
