"""Rewards that teach nothing or too much, registered the way a user's plug-in would be."""

from __future__ import annotations

from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group, Rollout


@reward("nothing")
def nothing(group: Group, ctx: RewardContext) -> list[float | None]:
    """Cannot judge any answer."""
    return [None for _ in group.rollouts]


@reward("huge")
def huge(group: Group, ctx: RewardContext) -> list[float | None]:
    """Finite, but its square is not."""
    return [_audited(r) if not r.ids else 1e300 * (1 + r.k) for r in group.rollouts]


@reward("equal")
def equal(group: Group, ctx: RewardContext) -> list[float | None]:
    """The same for all answers."""
    return [_audited(r) if not r.ids else 0.5 for r in group.rollouts]


def _audited(rollout: Rollout) -> float:
    """Before a run, gold (the first text) must beat junk."""
    return float(rollout.k == 0)
