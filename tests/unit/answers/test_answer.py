"""answers.tags: the reader of think and answer blocks."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import sample
from vlmrl.answers import tags as answer
from vlmrl.answers.tags import answer_view, gold_text, parse

SOUP = ["<think>", "</think>", "<answer>", "</answer>", "<", "{", "\n", "<think></think>", "<answer>x</answer>", "\\boxed{"]


@pytest.mark.parametrize(
    ("text", "thought", "found", "errors"),
    [
        ("<think>a</think><answer> B </answer>", "a", "B", ()),
        (" <Think>a\nb</THINK>\n<Answer>B</Answer>\n", "a\nb", "B", ()),
        ("<thinking>a</thinking><answer>B</answer>", "a", "B", ()),
        ("<think>\n\n</think><answer>B</answer>", "\n\n", "B", ()),
        ("<answer>B</answer>", None, "B", ("order",)),
        ("<answer>B</answer><think>a</think>", "a", "B", ("order",)),
        ("<think>a</think>x<answer>B</answer>", "a", "B", ("outside",)),
        ("<think>a</think><answer>B</answer>.", "a", "B", ("outside",)),
        ("<think>a</think><answer>1</answer><answer>2</answer>", "a", "2", ("answers", "order")),
        ("<think>a", None, None, ("no_answer", "outside", "unclosed")),
        ("<think>a</answer></think><answer>B</answer>", "a</answer>", "B", ("nested",)),
        ("<think><answer>9</answer></think><answer>3</answer>", "<answer>9</answer>", "3", ("nested",)),
        ("<think>a</think><answer>x</think></answer>", "a", "x</think>", ("nested",)),
        ("", None, None, ("no_answer",)),
    ],
)
def test_parse(text, thought, found, errors):
    parsed = parse(text, "think_answer")
    assert (parsed.thought, parsed.answer, parsed.errors) == (thought, found, errors)
    assert parsed.format_ok == (not errors)
    assert parsed.empty_thought == (thought is not None and not thought.strip())


def test_answer_only():
    assert parse("<answer>B</answer>", "answer_only").format_ok
    assert not parse("<think>a</think><answer>B</answer>", "answer_only").format_ok


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("<think>a</think><answer>B</answer>", "B"),
        ("a</think>C", "C"),
        ("<think>trunc", ""),
        ("<answer>1</answer> no <answer>2</answer>", "2"),
        ("plain", "plain"),
        ("<thinking>x <answer>9</answer></thinking><answer>3</answer>", "3"),
    ],
)
def test_answer_view(text, view):
    assert answer_view(text) == view


@given(text=st.lists(st.sampled_from([*SOUP, "a", " "]), max_size=12).map("".join))
def test_never_raises_and_agrees_with_itself(text):
    for answer_format in ("answer_only", "think_answer"):
        parsed = parse(text, answer_format)
        assert parsed.format_ok == (parsed.errors == ())
        assert parsed.answer is not None or "no_answer" in parsed.errors


@pytest.mark.parametrize("piece", SOUP)
def test_work_is_linear_in_the_length(piece):
    def calls(size: int) -> int:
        count = 0

        def profile(frame, event, arg):
            nonlocal count
            count += event in ("call", "c_call")

        text = (piece * size)[:size]
        sys.setprofile(profile)
        try:
            parse(text, "think_answer")
            answer_view(text)
        finally:
            sys.setprofile(None)
        return count

    assert calls(32768) <= 2.1 * calls(16384) + 100
    assert parse(piece * answer.MAX_CHARS, "think_answer").format_ok is False


@pytest.mark.parametrize("answer_format", ["answer_only", "think_answer"])
@pytest.mark.parametrize("thought", [None, "so"])
def test_gold_text_is_read_back(answer_format, thought):
    parsed = parse(gold_text(sample(), answer_format, thought), answer_format)
    assert parsed.format_ok
    assert parsed.answer == "3.0 to 5.0"
    assert parsed.thought == (None if answer_format == "answer_only" else thought or "\n\n")
