"""rewards.exact."""

from __future__ import annotations

from tests.support.builders import group, sample
from vlmrl.protocols import RewardContext
from vlmrl.rewards.exact import exact


def test_reward_exact():
    texts = ["<answer> two  Cats\n</answer>", "<answer>two cats.</answer>", "two cats", "<answer></answer>"]
    assert exact(group(texts, sample("Two cats")), RewardContext()) == [1.0, 0.0, 0.0, 0.0]
