"""metrics.boxes, further: matching by generalised IoU, borders, JSON objects."""

from __future__ import annotations

from vlmrl.metrics.boxes import giou, json_object, matched_score, numbers, point_in_box

A, B, FAR = (0.0, 0.0, 10.0, 10.0), (20.0, 0.0, 30.0, 10.0), (80.0, 80.0, 90.0, 90.0)


def test_matched_giou_is_clamped() -> None:
    pred, gold = [A, FAR], [A, (12.0, 0.0, 22.0, 10.0)]
    assert giou(FAR, gold[1]) < 0
    assert matched_score(pred, gold, "giou") == 0.5
    assert matched_score([(0.0, 0.0, 10.0, 5.0)], [A], "giou") == 0.5


def test_strict_border_of_a_box() -> None:
    box = (100.0, 100.0, 200.0, 300.0)
    got = [[point_in_box(p, box, inclusive=i) for i in (True, False)] for p in [(150, 150), (100, 100), (200, 300), (99.9, 150)]]
    assert got == [[True, True], [True, False], [True, False], [False, False]]


def test_json_objects_and_numbers() -> None:
    assert json_object('so {"a": [1]} it is') == {"a": [1]}
    assert json_object("[1]") is None
    assert json_object('{"a": ' + "[" * 3000 + "}") is None  # never reaches the reader's stack
    assert json_object('{"a": [[1]]}', brackets=1) is None
    assert numbers([1, 2.5], 2) == (1.0, 2.5)
    for value in ([1], [1, True], [1, "2"], [1, float("nan")], [1, 10**400], (1, 2), None):
        assert numbers(value, 2) is None
