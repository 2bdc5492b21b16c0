"""Equality of the answer with the gold answer."""

from __future__ import annotations

from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.answer import parse
from vlmrl.types import Group


def normalise(text: str) -> str:
    """Lower case, single spaces."""
    return " ".join(text.lower().split())


@reward("exact")
def exact(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the answer equals the gold answer up to case and white space, else 0."""
    gold = normalise(group.prompt.sample.answer)
    answers = [parse(rollout.text, group.prompt.template).answer for rollout in group.rollouts]
    return [float(answer is not None and normalise(answer) == gold) for answer in answers]
