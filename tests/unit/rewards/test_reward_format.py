"""rewards.format."""

from __future__ import annotations

from tests.support.builders import group
from vlmrl.protocols import RewardContext
from vlmrl.rewards.format import format_reward


def test_reward_format():
    texts = ["<think>a</think><answer>b</answer>", "<think></think><answer>b</answer>", "<answer>b</answer>", "b", ""]
    assert format_reward(group(texts), RewardContext()) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert format_reward(group(texts, answer_format="answer_only"), RewardContext()) == [0.0, 0.0, 1.0, 0.0, 0.0]
