"""rewards.tracking: tracks and tubes, by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.rewards.tracking import spatio_temporal, tracking

NO = RewardContext()
TRACK = {"1": [0, 0, 10, 10], "2": [0, 0, 10, 10]}
ROW = sample(json.dumps({"boxes": TRACK}), gt={"track": TRACK})


def texts(*answers: Any) -> list[str]:
    return [f"<answer>{answer if isinstance(answer, str) else json.dumps(answer)}</answer>" for answer in answers]


def test_tracking() -> None:
    half = {"boxes": {"1": [0, 0, 10, 5]}}
    more = {"boxes": {**TRACK, "3": [0, 0, 1, 1], "4": [0, 0, 1, 1]}}
    of = group(texts({"boxes": TRACK}, half, more, {"boxes": {"9": [0, 0, 10, 10]}}, {"boxes": [0, 0, 10, 10]}, "left"), ROW)
    assert tracking(of, NO) == [1, 0.25, 1, 0, 0, 0]
    assert tracking(of, NO, over="union") == [1, 0.25, 0.5, 0, 0, 0]
    assert tracking(of, NO, over="common") == [1, 0.5, 1, 0, 0, 0]


TUBE = {"time": [2, 4], "boxes": TRACK}
TUBE_ROW = sample(json.dumps(TUBE), gt={"tube": TUBE})


def test_spatio_temporal() -> None:
    of = group(
        texts(
            TUBE,
            {"time": [3, 4], "boxes": {"1": [0, 0, 10, 5]}},
            {"time": [2, 4]},
            {"boxes": TRACK},
            {"time": [4, 2], "boxes": TRACK},  # reversed
            {"time": [2, 4], "boxes": {"1": [0, 0, 10, 10], "x": [0, 0, 1, 1]}},  # boxes not readable
            "2 to 4",
        ),
        TUBE_ROW,
    )
    assert spatio_temporal(of, NO) == [1, 0.5, 0.5, 0.5, 0.5, 0.5, 0]
    assert spatio_temporal(of, NO, over="gold") == [1, (0.5 + 0.25) / 2, 0.5, 0.5, 0.5, 0.5, 0]
    assert spatio_temporal(of, NO, w_time=3, w_boxes=1)[1:4] == [0.5, 0.75, 0.25]
    with pytest.raises(ValueError, match="weights"):
        spatio_temporal(of, NO, w_time=0, w_boxes=0)


def test_other_samples_are_not_judged() -> None:
    assert tracking(group(["x"], TUBE_ROW), NO) == [None]
    assert spatio_temporal(group(["x"], ROW), NO) == [None]


def test_malformed_ground_truth_is_named() -> None:
    with pytest.raises(ValueError, match=r"row 'row' \(.*\): gt\.track"):
        tracking(group(["x"], sample(gt={"track": {}})), NO)
    for tube in ([], {"time": [1, 2]}, {"boxes": TRACK}):
        with pytest.raises(ValueError, match=r"gt\.tube"):
            spatio_temporal(group(["x"], sample(gt={"tube": tube})), NO)


def test_the_gold_answers_are_best() -> None:
    assert RewardRunner([("tracking", 1.0, tracking)]).self_test([ROW], "think") == []
    assert RewardRunner([("spatio_temporal", 1.0, spatio_temporal)]).self_test([TUBE_ROW], "think") == []
