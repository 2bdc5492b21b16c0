"""Whether a completion has the form that its prompt asked for."""

from __future__ import annotations

from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("format")
def format_reward(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the whole completion is the blocks of the prompt's answer format in order, else 0. An empty thought is valid."""
    return [float(parse(rollout.text, group.prompt.answer_format).format_ok) for rollout in group.rollouts]
