"""rewards.number."""

from __future__ import annotations

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.number import count, inverse_error, number

CTX = RewardContext()


def test_reward_count() -> None:
    texts = ["<answer>3</answer>", "<answer>three</answer>", "<answer>4</answer>", "<answer>3 or 4</answer>", "3", "<answer></answer>"]
    assert count(group(texts, sample("3", gt={"count": 3})), CTX) == [1, 1, 0, 0, 0, 0]
    assert count(group(texts, sample("3", gt={"number": 3})), CTX) == [None] * 6


def test_reward_number() -> None:
    texts = ["<answer>100</answer>", "<answer>90</answer>", "<answer>49</answer>", "<answer>many</answer>", "100"]
    assert number(group(texts, sample("100", gt={"number": 100})), CTX) == pytest.approx([1, 0.9, 0, 0, 0])
    assert number(group(texts, sample("100", gt={"count": 100})), CTX) == [None] * 5


def test_reward_inverse_error() -> None:
    """1 / error over the cap: errors of 0, 1/20, 1/10, 1/2 and 1 with a cap of 20."""
    texts = [f"<answer>{n}</answer>" for n in (100, 105, 110, 150, 200, "x")]
    of = sample("100", gt={"number": 100})
    assert inverse_error(group(texts, of), CTX) == pytest.approx([1, 1, 0.5, 0.1, 0.05, 0])
    assert inverse_error(group(texts, of), CTX, cap=4.0) == pytest.approx([1, 1, 1, 0.5, 0.25, 0])
    assert inverse_error(group(["<answer>5</answer>"], sample("0", gt={"number": 0})), CTX) == [0.0]
    assert inverse_error(group(texts, sample("3", gt={})), CTX) == [None] * 6
    with pytest.raises(ValueError, match="cap"):
        inverse_error(group(texts, of), CTX, cap=0.0)
