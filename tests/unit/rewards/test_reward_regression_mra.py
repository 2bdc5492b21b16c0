"""rewards.number.regression_mra."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import group, sample
from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.protocols import RewardContext
from vlmrl.rewards.number import number, regression_mra
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Group

CTX = RewardContext()


def of(gold: float, *answers: object) -> Group:
    return group([f"<answer>{answer}</answer>" for answer in answers], sample(str(gold), gt={"number": gold}))


def test_vectors() -> None:
    """Shares of the thresholds 0.5, 0.55, ..., 0.95; the published code and `number` agree on all of them."""
    answers, wanted = (100, 95, 90, 75, 50, 49, 150), [1, 1, 0.9, 0.6, 0.1, 0, 0.1]
    assert regression_mra(of(100, *answers), CTX) == number(of(100, *answers), CTX) == pytest.approx(wanted)
    assert regression_mra(of(4, 3, 5), CTX) == pytest.approx([0.6, 0.6])


def test_where_it_differs_from_number() -> None:
    """Half of 1e9 is off by a half to the last bit, which is not below 1 - 0.5; the 1e-8 saves it for 100."""
    assert regression_mra(of(1e9, 500000000), CTX) == [0.0]
    assert number(of(1e9, 500000000), CTX) == [0.1]


def test_zero() -> None:
    assert regression_mra(of(0, 0, 1, "0.000001"), CTX) == [1, 0, 0]


def test_what_is_no_number_and_rows_without_one() -> None:
    assert regression_mra(of(5, "", "4 or 5", "five"), CTX) == [0, 0, 1]
    assert regression_mra(group(["5", "<answer>5</answer>"], sample("5", gt={"number": 5})), CTX) == [0, 1]
    assert regression_mra(group(["<answer>5</answer>"], sample("5", gt={"count": 5})), CTX) == [None]


def test_gold_passes_the_self_test() -> None:
    rows = [replace(sample(f"{gold}", gt={"number": gold}), id=f"{gold}") for gold in (0, 3.5, -2, 1000000)]
    assert RewardRunner([("regression_mra", 1.0, regression_mra)]).self_test(rows, "think") == []


def test_evaluation_scores_a_regression_by_its_relative_accuracy() -> None:
    row = replace(sample("100", gt={"number": 100}), answer_type="regression")
    pred, gold, scores = ANSWER_TYPES["regression"].score("90", row)
    assert (pred, gold, scores) == ((90.0,), (100.0,), {"exact": 0.0, "relative_accuracy": 0.9})
    assert ANSWER_TYPES["regression"].main == ANSWER_TYPES["regression"].metrics[0].name == "relative_accuracy"
