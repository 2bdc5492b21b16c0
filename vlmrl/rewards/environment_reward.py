"""What the environment gave for each turn. The sum over the turns of an attempt is its return."""

from __future__ import annotations

from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, TurnRollout


@reward("environment_reward", best=None, no_truth=True, needs_environment=True)
def environment_reward(group: Group, ctx: RewardContext) -> list[float | None]:
    """The environment's reward of each turn; None for what is no turn of an attempt."""
    return [rollout.reward if isinstance(rollout, TurnRollout) else None for rollout in group.rollouts]
