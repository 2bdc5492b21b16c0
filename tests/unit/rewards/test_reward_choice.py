"""rewards.choice, and rewards.checks under it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import group, sample
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.choice import options_of
from vlmrl.answers.short_text import gold_answers
from vlmrl.protocols import RewardContext
from vlmrl.rewards.checks import check_of
from vlmrl.rewards.choice import choice
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Sample

CTX = RewardContext()


def row(answer: str, options: Any = (), answer_type: str = "choice") -> Sample:
    meta = {"options": list(options)} if options else {}
    return replace(sample(answer, gt={}, meta=meta, source="a.jsonl:7"), answer_type=answer_type)


def answered(*texts: str) -> list[str]:
    return [f"<think>A or C?</think><answer>{text}</answer>" for text in texts]


def test_letters_and_texts_of_options() -> None:
    texts = answered("B", "(b)", "B. dog", "a dog", "The answer is B.", "A", "A or B", "B. cat", "E", "", "a horse")
    for options in (["a cat", "a dog", "a cow"], ["A. a cat", "B. a dog", "C. a cow"]):
        for gold in ("B", "(B)", "a dog"):
            assert choice(group(texts, row(gold, options)), CTX) == [1, 1, 1, 1, 1, 0, 0, 1 if "cat" not in options else 0, 0, 0, 0]


def test_a_letter_next_to_another_options_text_is_wrong() -> None:
    assert choice(group(answered("B. a cat"), row("B", ["a cat", "a dog"])), CTX) == [0]


def test_the_last_answer_block_counts_and_the_thought_does_not() -> None:
    texts = ["<answer>A</answer><answer>B</answer>", "<think><answer>B</answer></think>", "B", "<think>B</think>"]
    assert choice(group(texts, row("B")), CTX) == [1, 0, 0, 0]


def test_an_answer_that_names_no_option_is_compared_as_text() -> None:
    assert choice(group(answered("yes", " YES ", "yes it is", "no"), row("Yes")), CTX) == [1, 1, 0, 0]


def test_other_rows_are_not_judged() -> None:
    assert choice(group(answered("B", "A"), row("B", answer_type="exact_text")), CTX) == [None, None]


@pytest.mark.parametrize("options", ["AB", ["x"] * 27, [1, 2]])
def test_options_that_cannot_be_used(options: Any) -> None:
    bad = replace(row("B"), meta={"options": options})
    with pytest.raises(ValueError, match=r"row 'row' \(a\.jsonl:7\): options"):
        choice(group(answered("B"), bad), CTX)


def test_gold_passes_the_self_test() -> None:
    rows = [row("B", ["a cat", "a dog"]), row("a dog", ["a cat", "a dog"]), row("C"), row("no")]
    assert RewardRunner([("choice", 1.0, choice)]).self_test(rows, "think") == []


@pytest.mark.parametrize("soup", ["<answer>", "</answer>", "<think>", "{", "\n", "A ", "(B"])
def test_soup(soup: str) -> None:
    text = soup * (65536 // len(soup))
    assert choice(group([text, f"<answer>{text}</answer>", f"<answer>{text}"], row("C", ["a", "b", "c"])), CTX) == [0, 0, 0]


def test_checks_know_their_rows() -> None:
    for name, answer_type, fits in (
        *(("exact", t, True) for t in ("choice", "math", "exact_text", "time_span")),
        *(("choice", t, t == "choice") for t in ("choice", "math", "exact_text")),
        *(("math", t, t == "math") for t in ("choice", "math", "number")),
    ):
        assert (check_of(name, row("B", answer_type=answer_type)) is not None) is fits  # type: ignore[arg-type]


def test_exact_check_and_gold_answers() -> None:
    right = check_of("exact", row("A  Cat", answer_type="exact_text"))
    assert right is not None
    assert right("a cat")
    assert not right("cat")
    assert options_of(row("B")) == []
    assert gold_answers(replace(row("x"), gt={"answers": ["y", "x", "z"]})) == ["x", "y", "z"]
    with pytest.raises(ValueError, match=r"a\.jsonl:7\): gt\.answers must be a list of texts"):
        gold_answers(replace(row("x"), gt={"answers": "y"}))


def test_the_scorer_of_evaluation_agrees_and_says_what_cannot_be_read() -> None:
    of = row("B", ["a cat", "a dog"])
    answers = ["B", "a dog", "A", "A or B", "", "a horse"]
    scored = [ANSWER_TYPES["choice"].score(answer, of) for answer in answers]
    assert [scores["exact"] for _, _, scores in scored] == choice(group(answered(*answers), of), CTX) == [1, 1, 0, 0, 0, 0]
    assert [pred for pred, _, _ in scored] == [(), (), (), None, None, None]
    assert ANSWER_TYPES["choice"].score(None, of) == (None, (), {"exact": 0.0})
    assert ANSWER_TYPES["choice"].score("perhaps", row("no")) == ((), (), {"exact": 0.0})
