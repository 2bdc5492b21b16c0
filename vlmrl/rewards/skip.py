"""Reward `right_without_thought`: a right answer that needed no thought. Ours; TON (arXiv:2505.16854) has no such term.

Next to a reward of the answer it teaches when to think: where the answer is right either way, leaving the thought out is worth a little
more, and where it is not, being right is worth far more than the little. Two other ways to pay for short answers lose the thoughts:

* A cost on length that every answer pays, right or wrong (`length`). While a thought is right only about as often as a guess, the short
  guess is the better deal, and the model stops thinking before its thoughts have become right.
* Any column about length under an advantage that uses ranks only (`g2rpo`): a difference of a hundredth counts as much as right or wrong.

Where a right answer pays a cost by length (`cosine_length`), the thought shrinks to a word that costs as much as none and means nothing.
"""

from __future__ import annotations

from typing import Any

from vlmrl.answers.base import ANSWER_TYPES
from vlmrl.answers.tags import parse
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


def _refuses(arguments: Any, stage: Any) -> list[str]:
    if stage.answer_format == "think_or_not":
        return []
    return [f"right_without_thought pays for leaving a thought out, which answer_format '{stage.answer_format}' does not allow"]


@reward("right_without_thought", best=None, shortens="right answers", refuses=_refuses)
def right_without_thought(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 for a right answer with an empty thought, else 0. Right is what the row's answer type counts so (`AnswerType.right_at`).

    Beside a reward of the answer with weight 1, a weight w should leave a right thought worth more than a guess that is right with the
    chance c: c (1 + w) < 1. With 0.5 and three answers a guess is worth 0.5.

    Raises:
        ValueError: the row lacks what scoring its answer type needs.
    """
    sample = group.prompt.sample
    kind = ANSWER_TYPES[sample.answer_type]
    out: list[float | None] = []
    for rollout in group.rollouts:
        parsed = parse(rollout.text, group.prompt.answer_format)
        right = kind.score(parsed.answer, sample)[2][kind.main] >= kind.right_at
        out.append(float(right and parsed.format_ok and parsed.empty_thought))
    return out
