"""Reward `judge`: correctness of free-form answers by a model that sees the same pictures as the policy (LLM as a judge).

Ours, in wording and scale; what the judge sees is the question, the reference answer and the answer, never the thought: a thought
must not be able to argue for its answer.
"""

from __future__ import annotations

from typing import Any

from vlmrl.answers.exact_text import normalise
from vlmrl.answers.tags import parse
from vlmrl.extras.judges.judges import JudgeQuestion
from vlmrl.extras.judges.material import pictures
from vlmrl.extras.judges.services import judged
from vlmrl.extras.judges.verdicts import score_check
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("judge", service=True)
def judge(
    group: Group,
    ctx: RewardContext,
    *,
    endpoint: dict[str, Any],
    instructions: str = "",
    answer_types: tuple[str, ...] = (),
    with_pictures: bool = True,
    exact_first: bool = True,
) -> list[float | None]:
    """How right the answer is, in [0, 1], by a judge with pictures, question and reference answer.

    A missing answer scores 0 and, with `exact_first`, one that equals the reference up to case and white space 1; neither is asked.
    A row without a reference answer, or of another type than `answer_types` (empty: all), is not judged (None). `instructions` are
    added to the judge's.

    Raises:
        RemoteError, ConfigError: the service stays down, or the endpoint is wrong.
        ValueError: the prompt's pixels are not in `ctx.media`.
    """
    sample = group.prompt.sample
    if not sample.answer.strip() or (answer_types and sample.answer_type not in answer_types):
        return [None] * len(group.rollouts)
    seen = pictures(group, ctx) if with_pictures else ()

    def row(text: str) -> JudgeQuestion | float:
        answer = parse(text, group.prompt.answer_format).answer
        if not answer:
            return 0.0
        if exact_first and normalise(answer) == normalise(sample.answer):
            return 1.0
        values = {"question": sample.question, "gold": sample.answer, "answer": answer, "instructions": instructions}
        return JudgeQuestion(template="judge", values=values, check=score_check(), pictures=seen)

    return judged(endpoint, "judge", [row(rollout.text) for rollout in group.rollouts], lambda verdict: verdict["score"])
