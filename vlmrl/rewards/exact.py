"""Reward `exact`: the answer equals the gold answer, case and white space aside."""

from __future__ import annotations

from vlmrl.answers.exact_text import same_text
from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("exact")
def exact(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the answer equals the gold answer up to case and white space, or says one of `gt.accepted` where the row lists them; else 0."""
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    return [float(answer is not None and same_text(answer, group.prompt.sample)) for answer in answers]
