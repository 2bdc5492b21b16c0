"""evals.score.extraction: what scorers see of reasoning output, in every form that scorers of other harnesses are known to misread."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import answer_view, parse
from vlmrl.evals.score.extraction import Extraction, answer_of
from vlmrl.metrics.text import read_choice
from vlmrl.types import Sample

OPTIONS = ["alpha", "beta", "gamma", "delta"]
OTHERS = "<think>Option A looks wrong, and C. is gamma.</think><answer>B</answer>"
WRONG = "<think>Perhaps B. beta? The answer is B? No.</think><answer>C</answer>"


def sample(answer_type: str, answer: str = "", gt: dict[str, Any] | None = None, **meta: Any) -> Sample:
    return Sample(id="q", task="t", answer_type=answer_type, question="?", media=(), answer=answer, gt=gt or {}, meta=meta)


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        ("B", None, "B"),
        ("(B)", None, "B"),
        ("The answer is B.", None, "B"),
        (OTHERS, "B", "B"),
        (WRONG, "C", "C"),
        ("<answer>B</answer>", "B", "B"),
        ("<answer>B. beta</answer>", "B", "B"),
        ("B. beta", None, "B"),
        ("<thinking>A or C?</thinking>\nThe answer is (B).", None, "B"),
        ("A or C? B it is.</think>B", None, "B"),  # the thought was opened in the prompt
        ("<think>It is B", None, None),  # cut off within the thought
    ],
)
@pytest.mark.parametrize("answer_format", ["think_answer", "answer_only"])
def test_choices_are_read_from_the_answer_alone(text: str, strict: str | None, lenient: str | None, answer_format: str) -> None:
    """Gold is B. Every cell: the letter that is read, and the score of the scorer."""
    cases: list[tuple[Extraction, str | None]] = [("strict", strict), ("lenient", lenient)]
    for extraction, letter in cases:
        answer = answer_of(text, answer_format, extraction)
        assert (None if answer is None else read_choice(answer, OPTIONS)) == letter
        pred, _, scores = ANSWER_TYPES["choice"].score(answer, sample("choice", "B", options=OPTIONS))
        assert scores["exact"] == float(letter == "B")
        assert (pred is None) == (letter is None)


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        ("<think>a</think><answer>B</answer>", "B", "B"),
        ("a</think>C", None, "C"),
        ("<think>trunc", None, None),
        ("<answer>1</answer> no <answer>2</answer>", "2", "2"),
        ("plain", None, "plain"),
        ("<thinking>x <answer>9</answer></thinking><answer>3</answer>", "3", "3"),
        ("<think>a</think><answer></answer>", "", ""),  # an empty answer is one
        ("<think>a</think>", None, None),
        (" \n", None, None),
    ],
)
def test_answers(text: str, strict: str | None, lenient: str | None) -> None:
    assert (answer_of(text, "think_answer", "strict"), answer_of(text, "think_answer", "lenient")) == (strict, lenient)


THOUGHT = "<think>First [1, 1, 2, 2], (5, 5), from 1 to 2, 9, no.</think>"


@pytest.mark.parametrize(
    ("answer_type", "answer", "text", "gt", "meta"),
    [
        ("bbox", "", "[100, 100, 200, 300]", {"boxes": [[100, 100, 200, 300]]}, {"frame": "norm1000"}),
        ("point", "", "(500, 500)", {"points": [[500, 500]]}, {"frame": "norm1000"}),
        ("time_span", "", "from 3.0 to 5.0 seconds", {"time": [3.0, 5.0]}, {}),
        ("number", "7", "There are 7.", {"count": 7}, {}),
        ("math", "7", "$7$", {}, {}),
        ("short_text", "STOP", "STOP", {}, {}),
        ("exact_text", "yes", "Yes", {}, {}),
    ],
)
@pytest.mark.parametrize("form", ["{}{}", "{}<answer>{}</answer>", "{}\n\n{}\n"])
def test_numbers_of_the_thought_are_no_answer(
    answer_type: str, answer: str, text: str, gt: dict[str, Any], meta: dict[str, Any], form: str
) -> None:
    row = sample(answer_type, answer, gt, **meta)
    read = answer_of(form.format(THOUGHT, text), "think_answer", "lenient")
    _, _, scores = ANSWER_TYPES[answer_type].score(read, row)
    assert set(scores.values()) == {1.0}
    assert answer_of(form.format(THOUGHT, text), "think_answer", "strict") == (text if "<answer>" in form else None)


def test_other_known_misreadings() -> None:
    # a wrong country is not the option whose letter it begins with
    towers = ["Big Ben", "Colosseum", "Kremlin", "Louvre", "Eiffel Tower"]
    assert read_choice("Egypt", towers) is None
    assert read_choice("Eiffel Tower", towers) == "E"
    # the last tag counts, not the first
    assert answer_of("<answer>1</answer>, or rather <answer>2</answer>", "answer_only", "lenient") == "2"


SEVERAL = "<think>a<answer>0</answer></think><answer> 1 </answer><answer>2</answer>"


@pytest.mark.parametrize(
    ("text", "first", "whole"),
    [
        (SEVERAL, "1", SEVERAL),
        ("<answer>1", "<answer>1", "<answer>1"),
        (" so 1\n", "so 1", "so 1"),
        (" ", None, None),
    ],
)
def test_the_first_block_or_the_whole_text(text: str, first: str | None, whole: str | None) -> None:
    for answer_format in ("think", "answer_only"):
        assert (answer_of(text, answer_format, "first"), answer_of(text, answer_format, "whole")) == (first, whole)


def test_an_unknown_extraction_is_named() -> None:
    with pytest.raises(ValueError, match="one of strict, lenient, first, whole, got 'raw'"):
        answer_of("B", "think_answer", "raw")  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "B", " ", "\n", "so"]), max_size=10).map("".join))
def test_a_tagged_answer_is_the_same_in_both_views(text: str) -> None:
    strict, lenient = answer_of(text, "think_answer", "strict"), answer_of(text, "think_answer", "lenient")
    assert strict == parse(text, "think_answer").answer
    assert lenient == (answer_view(text) or None if strict is None else strict)
