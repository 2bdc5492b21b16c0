"""rewards.segmentation: pictures and videos, by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.rewards.segmentation import segmentation_points

NO = RewardContext()
PICTURE: dict[str, Any] = {
    "boxes": [0, 0, 100, 100],
    "positive_points": [[10, 10], [50, 50], [90, 90]],
    "negative_points": [[200, 200], [300, 300], [400, 400]],
}
VIDEO = {**PICTURE, "time": 4.0}
ROW, VIDEO_ROW = (sample(json.dumps(gt), gt={"segmentation": gt}) for gt in (PICTURE, VIDEO))


def texts(*answers: Any) -> list[str]:
    return [f"<answer>{answer if isinstance(answer, str) else json.dumps(answer)}</answer>" for answer in answers]


MOVED = {**PICTURE, "positive_points": [[140, 90], [60, 10], [100, 50]]}
"""All three are 50 to the right of a true point, in another order."""


def test_segmentation_points_of_a_picture() -> None:
    of = group(
        texts(PICTURE, {**PICTURE, "boxes": [0, 0, 100, 50]}, MOVED, {**PICTURE, "negative_points": []}, {"boxes": [0, 0, 100, 100]}, "x"),
        ROW,
    )
    assert segmentation_points(of, NO) == pytest.approx([1, 0.75, 0.75 + 0.25 * math.exp(-0.5), 0, 0, 0])
    assert segmentation_points(of, NO, sigma=100)[2] == pytest.approx(0.75 + 0.25 * math.exp(-0.125))


def test_segmentation_points_of_a_video() -> None:
    of = group(texts(VIDEO, {**VIDEO, "time": 2}, {**MOVED, "time": 4}, PICTURE, {**VIDEO, "time": "4"}), VIDEO_ROW)
    assert segmentation_points(of, NO) == pytest.approx([1, 0.7 + 0.3 * math.exp(-1), 0.8 + 0.2 * math.exp(-0.5), 0, 0])


def test_other_samples_and_mistakes() -> None:
    assert segmentation_points(group(["x"]), NO) == [None]
    with pytest.raises(ValueError, match="sigma"):
        segmentation_points(group(["x"], ROW), NO, sigma=0)
    for wrong in ([], {"boxes": [0, 0, 1, 1]}):
        with pytest.raises(ValueError, match=r"row 'row' \(.*\): gt\.segmentation"):
            segmentation_points(group(["x"], sample(gt={"segmentation": wrong})), NO)


def test_the_gold_answer_is_best() -> None:
    assert RewardRunner([("segmentation_points", 1.0, segmentation_points)]).self_test([ROW, VIDEO_ROW], "think") == []
