"""The score of the row's answer type: the one that evaluation reports as the main score, of any type, those of plug-ins included."""

from __future__ import annotations

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("answer_score")
def answer_score(group: Group, ctx: RewardContext) -> list[float | None]:
    """Main score of the answer (`AnswerType.main`), in [0, 1]; 0 for one that is missing or cannot be read. For rows of every answer type.

    Raises:
        ValueError: the row lacks what scoring its answer type needs.
    """
    sample = group.prompt.sample
    kind = ANSWER_TYPES[sample.answer_type]
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    return [kind.score(answer, sample)[2][kind.main] for answer in answers]
