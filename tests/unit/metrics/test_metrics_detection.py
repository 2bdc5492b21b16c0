"""metrics.detection, and what metrics.boxes has for detection: by hand, and against pycocotools."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.metrics.boxes import Box, giou, iou, iou_vlm_r1, json_object, matched_score, numbers, point_in_box
from vlmrl.metrics.detection import THRESHOLDS, Picture, accuracy_at, average_precision, mean_average_precision

A, B, FAR = (0.0, 0.0, 10.0, 10.0), (20.0, 0.0, 30.0, 10.0), (80.0, 80.0, 90.0, 90.0)


def picture(gold: list[Box], pred: list[Box], scores: list[float]) -> Picture:
    return Picture(gold=gold, pred=pred, scores=scores)


@pytest.mark.parametrize(
    ("pred", "scores", "value"),
    [
        ([A, B], [0.9, 0.8], 1.0),
        ([A], [0.9], 51 / 101),  # recall 0.5 with precision 1: the recalls 0 to 0.50
        ([A, FAR, B], [0.9, 0.8, 0.7], (51 + 50 * 2 / 3) / 101),
        ([FAR, A], [0.9, 0.8], 51 / 101 / 2),
        ([FAR, A], [0.8, 0.9], 51 / 101),  # the order is that of the scores
        ([A, A], [0.9, 0.8], 51 / 101),  # a true box is found once
        ([], [], 0.0),
    ],
)
def test_average_precision_by_hand(pred: list[Box], scores: list[float], value: float) -> None:
    assert average_precision([picture([A, B], pred, scores)], 0.5) == pytest.approx(value)


def test_the_threshold_is_inclusive_and_detections_are_limited() -> None:
    half = [picture([A], [(0.0, 0.0, 10.0, 5.0)], [1.0])]
    assert average_precision(half, 0.5) == 1
    assert average_precision(half, 0.51) == 0
    assert average_precision([picture([A], [FAR, A], [0.9, 0.8])], 0.5, max_detections=1) == 0


def test_categories_that_do_not_occur_are_left_out() -> None:
    there, empty = [picture([A], [A], [1.0])], [picture([], [A], [1.0])]
    assert mean_average_precision([there, empty]) == 1
    assert mean_average_precision([there, [picture([A], [], [])]]) == 0.5
    with pytest.raises(ValueError, match="no true boxes"):
        mean_average_precision([empty])
    with pytest.raises(ValueError, match="no true boxes"):
        average_precision(empty, 0.5)
    with pytest.raises(ValueError, match="picture 0 has 1 predictions and 0 scores"):
        average_precision([picture([A], [A], [])], 0.5)


def test_agrees_with_pycocotools() -> None:
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    rng = np.random.default_rng(0)
    categories = [_random_category(rng) for _ in range(3)]
    images = [{"id": i + 1} for i in range(len(categories[0]))]
    truth: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for c, pictures in enumerate(categories):
        for i, p in enumerate(pictures):
            for box in p.gold:
                where = {"image_id": i + 1, "category_id": c + 1, "bbox": _xywh(box), "area": _xywh(box)[2] * _xywh(box)[3]}
                truth.append({"id": len(truth) + 1, "iscrowd": 0, **where})
            for box, score in zip(p.pred, p.scores, strict=True):
                found.append({"image_id": i + 1, "category_id": c + 1, "bbox": _xywh(box), "score": score})
    with contextlib.redirect_stdout(io.StringIO()):
        gold = coco.COCO()
        gold.dataset = {"images": images, "categories": [{"id": c + 1} for c in range(3)], "annotations": truth}
        gold.createIndex()
        run = cocoeval.COCOeval(gold, gold.loadRes(found), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    assert 0.1 < run.stats[0] < 0.9
    assert mean_average_precision(categories) == pytest.approx(run.stats[0], abs=1e-9)
    assert mean_average_precision(categories, [0.5]) == pytest.approx(run.stats[1], abs=1e-9)
    assert mean_average_precision(categories, [0.75]) == pytest.approx(run.stats[2], abs=1e-9)


def _xywh(box: Box) -> list[float]:
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def _random_category(rng: np.random.Generator) -> list[Picture]:
    out: list[Picture] = []
    for _ in range(12):
        gold = [_random_box(rng) for _ in range(rng.integers(0, 5))]
        near = [tuple(float(v) for v in np.array(b) + rng.integers(-4, 5, 4)) for b in gold if rng.random() < 0.8]
        pred = [*near, *(_random_box(rng) for _ in range(rng.integers(0, 4)))]
        # scores of one decimal: ties within and between pictures
        out.append(picture(gold, pred, [float(s) / 10 for s in rng.integers(1, 10, len(pred))]))  # type: ignore[arg-type]
    return out


def _random_box(rng: np.random.Generator) -> Box:
    x, y, w, h = (float(v) for v in rng.integers([10, 10, 10, 10], [100, 100, 60, 60]))
    return x, y, x + w, y + h


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6, unique=True), st.permutations(range(6)))
def test_order_of_predictions_does_not_matter_when_scores_differ(scores: list[float], order: list[int]) -> None:
    pred = [A, FAR, B, (1.0, 0.0, 11.0, 10.0), (20.0, 1.0, 30.0, 11.0), (5.0, 5.0, 6.0, 6.0)][: len(scores)]
    mixed = [i for i in order if i < len(scores)]
    plain = average_precision([picture([A, B], pred, scores)], THRESHOLDS[0])
    assert average_precision([picture([A, B], [pred[i] for i in mixed], [scores[i] for i in mixed])], THRESHOLDS[0]) == plain
    assert 0 <= plain <= 1


def test_accuracy_at() -> None:
    values = [0.5, 0.4, 0.9, 0.5]
    assert accuracy_at(values, 0.5) == 0.75
    assert accuracy_at(values, 0.5, strict=True) == 0.25
    with pytest.raises(ValueError, match="no values"):
        accuracy_at([], 0.5)


def test_iou_of_vlm_r1() -> None:
    assert iou_vlm_r1((0, 0, 2, 2), (1, 1, 3, 3)) == 0  # the table of the specification
    assert iou_vlm_r1((50, 50, 150, 150), (60, 60, 160, 160)) == pytest.approx(iou((50, 50, 150, 150), (60, 60, 160, 160)))
    assert iou_vlm_r1((0, 0, 0, 0), (0, 0, 0, 0)) == 0


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
