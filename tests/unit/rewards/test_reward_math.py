"""rewards.math; the verdicts themselves are in test_metrics_math."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import group, sample
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.protocols import RewardContext
from vlmrl.rewards.math import math
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Sample

CTX = RewardContext()


def row(answer: str, answer_type: str = "math") -> Sample:
    return replace(sample(answer, gt={}), answer_type=answer_type)


def test_only_the_answer_is_read() -> None:
    texts = [
        *["<think>maybe 5</think><answer>7</answer>", "<answer>$\\frac{14}{2}$</answer>", "<answer>\\boxed{7.0}</answer>", "7"],
        *["<think>7</think>", "<answer>5</answer><answer>7</answer>", "<answer>7</answer><answer>5</answer>", "<answer></answer>", ""],
    ]
    assert math(group(texts, row("7")), CTX) == [1, 1, 1, 0, 0, 1, 0, 0, 0]


def test_a_bomb_is_wrong_and_the_rest_of_its_group_is_judged() -> None:
    texts = [f"<answer>{text}</answer>" for text in ("9**9**9**9", "2*sqrt(2)", "(((((9!)!)!)!)!)", r"\sqrt8")]
    assert math(group(texts, row(r"2\sqrt{2}")), CTX) == [0, 1, 0, 1]


def test_other_rows_are_not_judged() -> None:
    assert math(group(["<answer>7</answer>"], row("7", "number")), CTX) == [None]


def test_gold_passes_the_self_test() -> None:
    golds = [
        r"\frac{1}{2}",
        "$x^2$",
        r"4\sqrt{2}",
        "(1,2)",
        "140°",
        r"\int_0^1 f",
        "A",
        r"\boxed{3}",
        "9^{9^9}",
        "none",
        "x = 3, y = 4",
        "{",
    ]
    assert RewardRunner([("math", 1.0, math)]).self_test([row(gold) for gold in golds], "think") == []


@pytest.mark.parametrize("soup", ["<answer>", "</answer>", "<think>", "\\boxed{", "{", "$", "^", "\n", "9^", "(1+"])
def test_soup(soup: str) -> None:
    text = soup * (65536 // len(soup))
    assert math(group([text, f"<answer>{text}</answer>", f"<answer>{text[:300]}</answer>"], row("1/7")), CTX) == [0, 0, 0]


def test_the_scorer_of_evaluation_agrees() -> None:
    answers = ["0.5", r"\frac{2}{4}", "2", "9^{9^9}"]
    scored = [ANSWER_TYPES["math"].score(answer, row("1/2")) for answer in answers]
    assert scored == [((), (), {"exact": value}) for value in math(group([f"<answer>{a}</answer>" for a in answers], row("1/2")), CTX)]
    assert [scores["exact"] for _, _, scores in scored] == [1, 1, 0, 0]
    assert ANSWER_TYPES["math"].score(None, row("1/2")) == (None, (), {"exact": 0.0})
