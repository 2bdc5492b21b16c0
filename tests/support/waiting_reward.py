"""A reward that is waited for, as a judge is, and differs between answers."""

from __future__ import annotations

import time

from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("waited_for", service=True)
def waited_for(group: Group, ctx: RewardContext, *, seconds: float = 2.0) -> list[float]:
    """Share of distinct characters among the first eight of the answer text, after a while."""
    time.sleep(seconds)
    return [len(set(r.text[:8])) / 8 for r in group.rollouts]
