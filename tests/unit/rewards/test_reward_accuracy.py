"""rewards.accuracy: one measure per row, by its answer type, and the structure of answers."""

from __future__ import annotations

import pytest

from tests.support.builders import group
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.protocols import RewardContext
from vlmrl.rewards.accuracy import BY_TYPE, UNSTRUCTURED, accuracy, answer_structure
from vlmrl.types import Sample

CTX = RewardContext()
TUBE = {"time": [1, 3], "boxes": {"1": [1, 2, 30, 40], "2": [1, 2, 30, 40]}}


def row(answer_type: str, answer: str = "", **gt: object) -> Sample:
    meta = {"options": ["A. a cat", "B. a dog"], "frame": "norm1000"}
    return Sample(id="a", task="t", answer_type=answer_type, question="?", media=(), answer=answer, gt=gt, meta=meta, source="a:1")


def scores(function, sample: Sample, *answers: str, **more) -> list[float | None]:
    return function(group([f"<answer>{answer}</answer>" for answer in answers], sample, "answer_only"), CTX, **more)


@pytest.mark.parametrize(
    ("sample", "answers", "wanted"),
    [
        (row("choice", "B"), ["B", "a dog", "A"], [1, 1, 0]),
        (row("math", "\\frac{1}{2}"), ["0.5", "1/2", "2"], [1, 1, 0]),
        (row("number", "3", number=3), ["3.0", "3.004", "3.01", "three", "4"], [1, 1, 0, 1, 0]),
        (row("number", "1,200"), ["1200", "1200.001", "1201"], [1, 1, 0]),
        (row("regression", "10", number=10.0), ["10", "12", "30"], [1, 0.7, 0]),
        (row("short_text", "NO EXIT"), ["NO EXIT", "NO"], [1, 0.5]),
        (row("exact_text", "A man"), ["a  man", "a woman"], [1, 0]),
        (row("time_span", time=[2, 4]), ["2 to 4", "3 to 4", "never"], [1, 0.5, 0]),
    ],
)
def test_accuracy_is_the_measure_of_the_answer_type(sample: Sample, answers: list[str], wanted: list[float]) -> None:
    assert scores(accuracy, sample, *answers) == pytest.approx(wanted)


def test_accuracy_of_open_answers_by_shared_words() -> None:
    sample = row("exact_text", "a man opens a door")
    equal = scores(accuracy, sample, "a man opens a door", "a man opens a window", open_answers="rouge")
    assert equal[0] == 1
    assert 0.5 < (equal[1] or 0) < 1
    assert scores(accuracy, row("exact_text", "???"), "???", open_answers="rouge") == [1], "a text without words is compared as a whole"


@pytest.mark.parametrize(
    ("sample", "texts", "last", "first"),
    [
        (
            row("choice", "B"),
            ["<answer>B</answer><answer>A</answer>", "<answer>A</answer> or <answer>B</answer>", "B"],
            [0, 1, 0],
            [1, 0, 0],
        ),
        (row("exact_text", "a red door"), ["<thinking>a</thinking>red door", "a red door"], [0, 0], [1, 1]),
        (row("short_text", "NO EXIT"), ["<think>NO", "NO EXIT"], [0, 0], [0.5, 1]),
        (row("math", "\\frac{1}{2}"), ["so it is $0.5$.", "so it is $2$.", "no result"], [0, 0, 0], [1, 0, 0]),
        (row("number", "3", number=3), ["it is 3", "<think>2</think><answer>3</answer><answer>4</answer>"], [0, 0], [0, 1]),
    ],
)
def test_accuracy_of_the_first_answer_block(sample: Sample, texts: list[str], last: list[float], first: list[float]) -> None:
    answers = group(texts, sample, "think")
    assert accuracy(answers, CTX) == pytest.approx(last)
    assert accuracy(answers, CTX, answer_block="first") == pytest.approx(first)


@pytest.mark.parametrize("kind", ["math", "number"])
def test_accuracy_of_the_whole_completion_reads_a_result_outside_of_its_tags(kind: str) -> None:
    texts = [
        "<think>2 + 1 = 3</think>",
        "so the answer is 3.",
        "<think>3</think><answer>3</answer>",
        "<think>it is 4 </think><answer>4</answer>",
    ]
    answers = group(texts, row(kind, "3", count=3), "think")
    assert accuracy(answers, CTX) == [0, 0, 1, 0]
    assert accuracy(answers, CTX, whole=True) == [1, 1, 1, 0]
    assert accuracy(group(["I say B"], row("choice", "B"), "think"), CTX, whole=True) == [0]


def test_every_answer_type_of_the_package_has_a_measure_or_the_main_score() -> None:
    assert set(BY_TYPE) <= set(ANSWER_TYPES)
    assert set(UNSTRUCTURED) <= set(BY_TYPE)
    assert set(ANSWER_TYPES) - set(BY_TYPE) >= {"point", "action"}
    assert scores(accuracy, row("point", "[5, 5]", boxes=[[0, 0, 10, 10]]), "[5, 6]", "[50, 60]") == [1, 0]


def test_answer_structure_wants_the_form_and_what_the_type_reads() -> None:
    boxes = row("bbox", boxes=[[1, 2, 30, 40]])
    assert scores(answer_structure, boxes, '{"boxes": [[9, 9, 10, 10]]}', "a cat") == [1, 0]
    assert answer_structure(group(['{"boxes": [[1, 2, 30, 40]]}'], boxes, "answer_only"), CTX) == [0], "no tags, no structure"
    assert scores(answer_structure, row("choice", "B"), "B", "anything") == [1, 1]


def test_answer_structure_of_boxes_by_frame_counts_the_true_frames() -> None:
    half = '{"time": [7, 8], "boxes": {"1.0": [9, 9, 10, 10], "5": [9, 9, 10, 10]}}'
    assert scores(answer_structure, row("spatio_temporal", tube=TUBE), half, '{"time": [1, 3]}', "no") == [0.75, 0, 0]
    track = row("tracking", track=TUBE["boxes"])
    assert scores(answer_structure, track, '{"boxes": {"1": [1, 2, 3, 4], "2": [1, 2, 3, 4]}}', '{"boxes": {"9": [1, 2, 3, 4]}}') == [
        1,
        0.5,
    ]
