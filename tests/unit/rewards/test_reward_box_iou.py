"""rewards.boxes."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.boxes import box_iou

SAMPLE = dataclasses.replace(sample('{"boxes": [[0, 0, 10, 10]]}', gt={"boxes": [[0, 0, 10, 10]]}), answer_type="bbox")
TEXTS = [
    '<answer>{"boxes": [[0, 0, 10, 10]]}</answer>',
    "<answer>[0, 0, 10, 5]</answer>",
    "<answer>[0, 0, 10, 10] [50, 50, 60, 60]</answer>",
    "<answer>[10, 10, 0, 0]</answer>",
    "<think>[0, 0, 10, 10]</think><answer>there</answer>",
    "[0, 0, 10, 10]",
]


def test_reward_box_iou() -> None:
    assert box_iou(group(TEXTS, SAMPLE), RewardContext()) == pytest.approx([1, 0.5, 0.5, 0, 0, 0])


def test_other_samples_are_not_judged() -> None:
    other = sample(gt={"boxes": [[0, 0, 10, 10]]})  # boxes for another purpose: its answer is a time span
    assert box_iou(group(TEXTS, other), RewardContext()) == [None] * 6
