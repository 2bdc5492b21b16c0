"""Reward `choice`: the answer names the right option of a multiple-choice question."""

from __future__ import annotations

from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.checks import check_of
from vlmrl.types import Group


@reward("choice")
def choice(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the answer means the right option, by its letter or by its text (`options` of the row), else 0.

    `metrics.text.read_choice` says how answers are read; several options, or a letter next to the text of another one, are wrong.
    Only for rows of answer type `choice` (else None).
    """
    right = check_of("choice", group.prompt.sample)
    if right is None:
        return [None] * len(group.rollouts)
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    return [float(answer is not None and right(answer)) for answer in answers]
