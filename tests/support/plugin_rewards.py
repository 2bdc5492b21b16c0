"""A reward that an untrained model earns now and then, registered the way a user's plug-in would be."""

from __future__ import annotations

from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("first_letter")
def first_letter(group: Group, ctx: RewardContext) -> list[float]:
    """Share of distinct characters among the first eight of the answer text; 1 for the gold answer's shape."""
    return [1.0 if r.text.startswith("<think>") else len(set(r.text[:8])) / 16 for r in group.rollouts]
