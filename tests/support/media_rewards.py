"""Rewards as plug-ins of a user: one looks at the pixels of every medium for every answer, one pulls files from under the run."""

from __future__ import annotations

from pathlib import Path

from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("looks")
def looks(group: Group, ctx: RewardContext) -> list[float]:
    """Mean brightness of the media, for each answer anew; in [0, 1]."""
    return [sum(float(ctx.media[handle.key].frames.mean()) / 255 for handle in group.prompt.media) / 8 for _ in group.rollouts]


@reward("deletes")
def deletes(group: Group, ctx: RewardContext) -> list[float]:
    """Deletes every medium below the source's folder that is called `gone-...`, as a clean-up job might during training."""
    folder = Path(group.prompt.sample.source.rsplit(":", 1)[0]).parent
    if ctx.media:  # not in the self-test before the first step, which has no pixels
        for path in folder.rglob("gone-*"):
            path.unlink()
    return [len(set(r.text)) / 64 for r in group.rollouts]
