"""How many tool calls an answer makes. It measures: use it with weight 0, beside a shaping that scales another reward by it."""

from __future__ import annotations

from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("tool_calls", best=None)
def tool_calls(group: Group, ctx: RewardContext, *, tag: str = "<tool_call>") -> list[float | None]:
    """Number of times that the tag which begins a call stands in the completion.

    Raises:
        ValueError: an empty tag.
    """
    if not tag:
        raise ValueError("tool_calls: tag is empty")
    return [float(rollout.text.count(tag)) for rollout in group.rollouts]
