"""rewards.boxes: the printed vectors, clamping, and which rows and answers are judged."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.boxes import ciou, giou, iou
from vlmrl.rewards.run.runner import RewardRunner
from vlmrl.types import Sample


def row(*boxes: list[float]) -> Sample:
    return dataclasses.replace(sample(f'{{"boxes": {[list(b) for b in boxes]}}}', gt={"boxes": list(boxes)}), answer_type="bbox")


def answers(*boxes: str) -> list[str]:
    return [f"<answer>{box}</answer>" for box in boxes]


BIG = row([60, 60, 160, 160])
TEXTS = answers(
    "[50, 50, 150, 150]", "[60, 60, 160, 160]", "[0, 0, 10, 10]", "[160, 160, 60, 60]", "there", "[60, 60, 160, 160] [0, 0, 1, 1]"
)


def test_reward_iou() -> None:
    assert iou(group(TEXTS, BIG), RewardContext()) == pytest.approx([0.680672, 1, 0, 0, 0, 0], abs=1e-6)


def test_reward_giou() -> None:
    assert giou(group(TEXTS, BIG), RewardContext()) == pytest.approx([0.664143, 1, 0, 0, 0, 0], abs=1e-6)
    # far away: hull 160 * 160, union 100 * 100 + 10 * 10
    loose = giou(group(TEXTS, BIG), RewardContext(), clamp=False)
    assert loose == pytest.approx([0.664143, 1, -(25600 - 10100) / 25600, -1, -1, -1], abs=1e-6)


def test_reward_ciou() -> None:
    assert ciou(group(TEXTS, BIG), RewardContext()) == pytest.approx([0.672408, 1, 0, 0, 0, 0], abs=1e-6)
    near = row([0, 0, 10, 10])
    texts = answers("[5, 0, 15, 10]", "[0, 0, 10, 20]", "[90, 90, 100, 100]", "there")
    assert ciou(group(texts, near), RewardContext(), clamp=False) == pytest.approx([0.256410, 0.446752, -0.81, -1], abs=1e-6)
    assert ciou(group(texts, near), RewardContext()) == pytest.approx([0.256410, 0.446752, 0, 0], abs=1e-6)


@pytest.mark.parametrize("function", [iou, giou, ciou])
def test_rows_without_exactly_one_box_are_not_judged(function) -> None:  # type: ignore[no-untyped-def]
    assert function(group(TEXTS, row([0, 0, 1, 1], [2, 2, 3, 3])), RewardContext()) == [None] * 6
    assert function(group(TEXTS, sample(gt={"boxes": [[60, 60, 160, 160]]})), RewardContext()) == [None] * 6


@pytest.mark.parametrize("function", [iou, giou, ciou])
def test_the_gold_answer_is_best(function) -> None:  # type: ignore[no-untyped-def]
    assert RewardRunner([(function.__name__, 1.0, function)]).self_test([BIG], "think") == []
