"""Reward `right_without_thought`: a right answer that needed no thought. Ours; TON (arXiv:2505.16854) has no such term.

Next to a reward of the answer it teaches when to think: where the answer is right either way, leaving the thought out is worth more, and
where it is not, a thought is worth more than a lucky guess. It is paid for right answers only, and about the thought instead of the number
of tokens, because other costs can lose the thoughts or their meaning:

* A cost on length that every answer pays, right or wrong (`length`), pays the short guess too. Where a thought is not yet right much more
  often than a guess, that can be the better deal.
* Under an advantage that uses ranks only (`g2rpo`) the least difference in length counts as much as right or wrong.
* Where right answers pay by length (`cosine_length`), a thought of one word that means nothing costs as much as none.

Choose an advantage that keeps its size (`batch_std`, `dr_grpo`). `grpo` divides each group by its own deviation: on easy questions, where
every answer is right, this reward is all that differs and counts in full. Leaving thoughts out can then spread to hard questions.

What happens in the generated world is in `docs/benchmarks/toy_video.md`.
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
