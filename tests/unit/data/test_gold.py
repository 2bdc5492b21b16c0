"""data.gold: a row's answer against its own ground truth, and its times against its clip."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.tiny import Tiny
from vlmrl.data.gold import check_answer, check_gold
from vlmrl.data.row import parse_row
from vlmrl.errors import RowError
from vlmrl.types import Sample


def row(**changes: Any) -> Sample:
    return parse_row({"id": "r", "task": "t", "prompt": "Q", **changes}, source="f:1", media_root=".")


SPAN = {"answer_type": "time_span", "gt": {"time": [2, 6]}}
BOX = {"answer_type": "bbox", "gt": {"boxes": [[10, 20, 110, 220]]}, "meta": {"frame": "norm1000"}}


@pytest.mark.parametrize(
    "good",
    [
        {**SPAN},
        {**SPAN, "answer": "2 to 6"},
        {**SPAN, "answer": "2.04 to 5.98"},
        {"answer_type": "time_span", "gt": {"time": [2.00449, 6.12345]}, "answer": "2.00 to 6.12"},
        {**BOX, "answer": '{"boxes": [[10, 20, 110.2, 220]]}'},
        {"answer_type": "number", "answer": "7", "gt": {"count": 7}},
        {"answer_type": "exact_text", "answer": "a dog", "gt": {"accepted": ["dog", "a dog"]}},
        {"answer_type": "choice", "answer": "B", "options": ["A. x", "B. y"]},
    ],
)
@pytest.mark.parametrize("answer_format", ["think", "answer_only", "think_or_not"])
def test_answers_that_agree(good: dict[str, Any], answer_format: str) -> None:
    check_answer(row(**good), answer_format)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({**SPAN, "answer": "90.00 to 95.00"}, r"'90\.00 to 95\.00' scores 0 of 1 against its own 'gt' \(time: \[2(\.0)?, 6(\.0)?\]\)"),
        ({**SPAN, "answer": "3 to 6"}, "scores 0.75"),
        ({**SPAN, "answer": "in the middle"}, "scores 0 of 1"),
        ({**BOX, "answer": '{"boxes": [[400, 400, 500, 500]]}'}, "scores 0 of 1"),
        ({"answer_type": "number", "answer": "7", "gt": {"number": 8}}, r"number: 8"),
        ({"answer_type": "number", "answer": "many", "gt": {"number": 7}}, "scores 0 of 1"),
    ],
)
def test_answers_that_contradict_their_ground_truth(bad: dict[str, Any], told: str) -> None:
    with pytest.raises(RowError, match=told) as caught:
        check_answer(row(**bad), "think")
    assert caught.value.reason == "answer"
    assert "row 'r' (f:1)" in str(caught.value)


def test_an_answer_that_cannot_be_scored_is_named() -> None:
    with pytest.raises(RowError, match=r"row 'r' \(f:1\): its answer cannot be scored: .*gt\.accepted"):
        check_answer(row(answer_type="exact_text", answer="x", gt={"accepted": "y"}), "think")


def with_gt(tiny: Tiny, **gt: Any) -> Sample:
    one = tiny.samples[0]
    span = gt.get("time", [0.0, 1.0])
    return dataclasses.replace(one, gt=gt, answer=f"{span[0]:.2f} to {span[1]:.2f}")


def test_times_behind_the_clip(tiny: Tiny) -> None:
    one = tiny.samples[0]
    duration = tiny.store.get(one.media[0], tiny.encoder.root(one)).duration
    assert duration is not None
    late = min(2.0, 0.15 * duration)

    def check(**gt: Any) -> None:
        told = with_gt(tiny, **gt)
        for prompt in (tiny.encoder.plan(told, "think"), tiny.encoder.encode(told, "think")):
            check_gold(told, prompt)

    for good in ([0.0, 1.0], [0.0, duration], [0.5, duration + late - 0.01]):
        check(time=good)
    for bad in ([0.0, duration + late + 0.05], [duration, duration + 0.1], [1000.0, 2000.0]):
        with pytest.raises(
            RowError, match=rf"row '{one.id}' .*'gt.time' is \[.*s, but {one.media[0].path} is {duration:.2f} s long"
        ) as caught:
            check(time=bad)
        assert caught.value.reason == "time"
    check(time=[0.0, 1.0], windows=[[0.0, 1.0], [1.0, duration]])
    with pytest.raises(RowError, match=r"'gt\.windows\[1\]' is \[1, 99\] s"):
        check(time=[0.0, 1.0], windows=[[0.0, 1.0], [1.0, 99.0]])


def test_rows_without_one_video_have_no_clip(tiny: Tiny) -> None:
    one = with_gt(tiny, time=[1000.0, 2000.0])
    none = dataclasses.replace(one, media=())
    check_gold(none, tiny.encoder.plan(none, "think"))
