"""metrics.boxes: printed vectors, edge cases and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.boxes import Box, centre, ciou, convert, giou, iou, matched_score, parse_boxes, point_in_box

side = st.integers(1, 500)
corner = st.integers(0, 500)
boxes = st.builds(lambda x, y, w, h: (float(x), float(y), float(x + w), float(y + h)), corner, corner, side, side)


@pytest.mark.parametrize(
    ("a", "b", "overlap", "generalised"),
    [
        ((0, 0, 2, 2), (1, 1, 3, 3), 0.142857, -0.079365),
        ((0, 0, 1, 1), (2, 2, 3, 3), 0, -0.777778),
        ((2, 2, 8, 8), (0, 0, 10, 10), 0.36, 0.36),
        ((0, 0, 10, 5), (0, 0, 10, 10), 0.5, 0.5),
        ((0, 0, 10, 10), (10, 0, 20, 10), 0, 0),
        ((50, 50, 150, 150), (60, 60, 160, 160), 0.680672, 0.664143),
        ((100, 100, 200, 300), (110, 90, 210, 310), 0.75, 0.741736),
        ((0, 0, 0, 0), (60, 60, 160, 160), 0, -0.609375),
    ],
)
def test_iou_and_giou_vectors(a: Box, b: Box, overlap: float, generalised: float) -> None:
    assert iou(a, b) == pytest.approx(overlap, abs=1e-6)
    assert giou(a, b) == pytest.approx(generalised, abs=1e-6)


@pytest.mark.parametrize(
    ("pred", "gold", "value"),
    [
        ((3, 4, 50, 60), (3, 4, 50, 60), 1),
        ((5, 0, 15, 10), (0, 0, 10, 10), 0.256410),
        ((0, 0, 10, 20), (0, 0, 10, 10), 0.446752),
        ((50, 50, 150, 150), (60, 60, 160, 160), 0.672408),
        ((90, 90, 100, 100), (0, 0, 10, 10), -0.81),
        ((10, 0, 0, 10), (0, 0, 10, 10), -1),
    ],
)
def test_ciou_vectors(pred: Box, gold: Box, value: float) -> None:
    assert ciou(pred, gold) == pytest.approx(value, abs=1e-6)


def test_ciou_needs_a_gold_box() -> None:
    with pytest.raises(ValueError, match="no area"):
        ciou((0, 0, 1, 1), (5, 5, 5, 9))


PRED = [(0.0, 0.0, 10.0, 10.0), (20.0, 20.0, 30.0, 30.0), (50.0, 50.0, 60.0, 60.0)]
GOLD = [(0.0, 0.0, 10.0, 10.0), (22.0, 20.0, 32.0, 30.0)]


def test_matched_score_vectors() -> None:
    assert matched_score(PRED, GOLD, "ciou") == pytest.approx(0.550091, abs=1e-6)
    assert matched_score(PRED, GOLD) == pytest.approx(0.555556, abs=1e-6)
    assert matched_score(GOLD, GOLD, "ciou") == pytest.approx(1)
    assert matched_score([*GOLD, *GOLD], GOLD, "ciou") == pytest.approx(0.5)  # a perfect prediction that lists every box twice
    assert matched_score([], GOLD) == 0
    assert matched_score(GOLD, []) == 0
    assert matched_score([], []) == 1
    assert matched_score([(90, 90, 100, 100)], [(0, 0, 10, 10)], "ciou") == 0  # clamped


def test_matching_is_the_best_one_and_not_greedy() -> None:
    gold = [(0.0, 0.0, 10.0, 10.0), (4.0, 0.0, 14.0, 10.0)]
    pred = [(2.0, 0.0, 12.0, 10.0), (4.0, 0.0, 14.0, 10.0)]
    # the second prediction is exact, so the first must take the first gold box: (8/12 + 1) / 2
    assert matched_score(pred, gold) == pytest.approx((8 / 12 + 1) / 2)


@given(boxes, boxes)
def test_overlap_is_symmetric_and_bounded(a: Box, b: Box) -> None:
    assert iou(a, b) == iou(b, a)
    assert 0 <= iou(a, b) <= 1
    assert -1 < giou(a, b) <= iou(a, b)
    assert ciou(a, b) <= iou(a, b) + 1e-12
    assert iou(a, a) == giou(a, a) == 1


@given(st.lists(boxes, min_size=1, max_size=4), st.lists(boxes, min_size=1, max_size=4), st.sampled_from(["iou", "ciou"]))
def test_matching_ignores_order(pred: list[Box], gold: list[Box], measure: str) -> None:
    score = matched_score(pred, gold, measure)  # type: ignore[arg-type]
    assert 0 <= score <= 1
    assert matched_score(pred[::-1], gold[::-1], measure) == pytest.approx(score)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("point", "inside", "strictly"),
    [((150, 150), True, True), ((100, 100), True, False), ((200, 300), True, False), ((99.9, 150), False, False)],
)
def test_point_in_box_vectors(point: tuple[float, float], inside: bool, strictly: bool) -> None:
    assert point_in_box(point, (100, 100, 200, 300)) is inside
    assert point_in_box(point, (100, 100, 200, 300), inclusive=False) is strictly


def test_frames() -> None:
    assert convert((500, 500), (1920, 1080), source="norm1000", target="pixel") == (960, 540)
    in_processed = (652 / 1316 * 1000, 364 / 728 * 1000)
    assert convert(in_processed, (1920, 1080), source="norm1000", target="pixel") == pytest.approx((951.246, 540.0), abs=1e-3)
    assert convert((1, 2, 3, 4), (7, 7), source="pixel", target="pixel") == (1, 2, 3, 4)
    with pytest.raises(ValueError, match="pairs"):
        convert((1, 2, 3), (7, 7), source="pixel", target="norm1000")
    with pytest.raises(ValueError, match="positive"):
        convert((1, 2), (0, 7), source="pixel", target="norm1000")


@given(boxes, st.tuples(st.integers(1, 5000), st.integers(1, 5000)))
def test_frames_round_trip(box: Box, size: tuple[int, int]) -> None:
    there = convert(box, size, source="pixel", target="norm1000")
    assert convert(there, size, source="norm1000", target="pixel") == pytest.approx(box)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"boxes": [[1, 2, 3, 4], [5, 6, 7, 8.5]]}', [(1, 2, 3, 4), (5, 6, 7, 8.5)]),
        ('{"boxes": [1, 2, 3, 4]}', [(1, 2, 3, 4)]),
        ("It is at [10,20, 30 ,40].", [(10, 20, 30, 40)]),
        ("[1, 2, 3]", None),
        ('{"boxes": [[1, 2, 3]]}', None),
        ('{"boxes": [[1, 2, "3", 4]]}', None),
        ('{"boxes": [[1, 2, NaN, 4]]}', None),
        ('{"boxes": [[1, 2, 1e400, 4]]}', None),
        ('{"boxes": []}', None),
        ("[" * 5000, None),
        ("junk", None),
        ("", None),
        ("[9, 9, 1, 1]", [(9, 9, 1, 1)]),
    ],
)
def test_parse_boxes(text: str, found: list[Box] | None) -> None:
    assert parse_boxes(text) == found


def test_parse_boxes_is_bounded() -> None:
    assert len(parse_boxes("[1,2,3,4] " * 300) or []) == 64


def test_centre() -> None:
    assert centre((0, 10, 4, 20)) == (2, 15)
