"""Reward `math`: the answer is mathematically equal to the gold answer."""

from __future__ import annotations

from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.checks import IMPORTS, check_of
from vlmrl.types import Group


@reward("math", worker=True, imports=IMPORTS)
def math(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the answer is mathematically equal to the gold answer (math-verify), else 0.

    Expressions over the bounds of `metrics.math.burden` are compared as text. Only for rows of answer type `math` (else None).
    """
    right = check_of("math", group.prompt.sample)
    if right is None:
        return [None] * len(group.rollouts)
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    return [float(answer is not None and right(answer)) for answer in answers]
