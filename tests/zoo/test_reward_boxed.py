"""rewards.boxed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Sample
from vlmrl.zoo.rewards.boxed import boxed, boxed_answer

CTX = RewardContext()


def row(answer: str, answer_type: str = "math") -> Sample:
    return replace(sample(answer, gt={}), answer_type=answer_type)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *[
            (r"so \boxed{4}", "4"),
            (r"<think>\boxed{3}</think> so \boxed{4}.", "4"),
            (r"<answer>it is \boxed{\frac{1}{2}}</answer>", r"\frac{1}{2}"),
        ],
        *[(r"<think>\boxed{4}</think>", None), (r"<think>\boxed{4}", None), ("4", None), ("", None), (r"\boxed{4", None)],
        *[("<answer>4</answer>", "4"), (r"<answer>4</answer> or \boxed{5}", "4"), (r"\boxed{1} no, \boxed{2}", "2")],
    ],
)
def test_where_the_answer_is(text: str, answer: str | None) -> None:
    assert boxed_answer(text, "think") == answer


def test_checks() -> None:
    texts = [r"\boxed{\frac12}", r"<answer>\boxed{0.5}</answer>", "<answer>1/2</answer>", "1/2", r"\boxed{2}"]
    for gold in ("1/2", r"\boxed{1/2}"):
        assert boxed(group(texts, row(gold)), CTX) == [1, 1, 1, 0, 0]
        assert boxed(group(texts, row(gold)), CTX, check="exact") == [0, 0, 1, 0, 0]
    letters = [r"\boxed{B}", r"\boxed{(b)}", r"\boxed{B. dog}", r"so B", r"\boxed{A}"]
    assert boxed(group(letters, row("B", "choice")), CTX, check="choice") == [1, 1, 1, 0, 0]


def test_rows_that_the_check_is_not_for() -> None:
    assert boxed(group([r"\boxed{B}"], row("B", "choice")), CTX) == [None]
    assert boxed(group([r"\boxed{B}"], row("B", "math")), CTX, check="choice") == [None]


@pytest.mark.parametrize("answer_format", ["think", "answer_only"])
def test_gold_passes_the_self_test(answer_format: str) -> None:
    rows = [row("1/2"), row(r"\boxed{1/2}"), row(r"\{1, 2\}"), row(r"so \boxed{x^{2}}")]
    assert RewardRunner([("boxed", 1.0, boxed)]).self_test(rows, answer_format) == []


@pytest.mark.parametrize("soup", ["\\boxed{", "{", "}", "\\", "<think>", "</think>", "<answer>", "\n", "\\boxed{}"])
def test_soup(soup: str) -> None:
    text = soup * (65536 // len(soup))
    assert boxed(group([text, f"<answer>{text}</answer>", rf"{text}</think>\boxed{{"], row("7")), CTX) == [0, 0, 0]
