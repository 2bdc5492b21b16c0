"""rewards.temporal_iou."""

from __future__ import annotations

import pytest

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.temporal_iou import temporal_iou_reward

TEXTS = ["<answer>3 to 5</answer>", "<answer>4 to 6</answer>", "<answer>5 to 3</answer>", "<answer>soon</answer>", "3 to 5"]


def test_reward_temporal_iou():
    assert temporal_iou_reward(group(TEXTS), RewardContext()) == pytest.approx([1, 1 / 3, 0, 0, 0])
    assert temporal_iou_reward(group(TEXTS), RewardContext(), sort_times=True) == pytest.approx([1, 1 / 3, 1, 0, 0])


def test_without_a_true_span_nothing_is_judged():
    assert temporal_iou_reward(group(TEXTS, sample(gt={"label": 1})), RewardContext()) == [None] * 5
