"""Reward `thinking`: quality of the reasoning by a judge, as in SophiaVL-R1. arXiv:2505.17018.

q in [0, 1] from a model that grades the reasoning on soundness, correctness, error identification, consistency of language and
redundancy, apart from whether the answer is right. The shape `trust` of this package turns the column into gamma * alpha * exp(-s / T) * q.
The released code judges only rollouts with an outcome of at least 0.2 and gives the rest 0, which makes the trust weight inert with
0/1 outcomes; `judge_wrong: false` is that, the default judges all (outcome "above 0" by the column `correct_by`).
Ours: the wording (the paper trains a model of its own for it), a multiple of 0.1 is asked for but not demanded, and a missing thought
scores 0. A verdict that cannot be had is missing, and `trust` then drops the term for the group; the code scores it 0.
"""

from __future__ import annotations

from typing import Any

from vlmrl.answers.tags import parse
from vlmrl.extras.judges.judges import JudgeQuestion
from vlmrl.extras.judges.material import pictures
from vlmrl.extras.judges.services import judged, right_rows
from vlmrl.extras.judges.verdicts import score_check
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("thinking", paper="arXiv:2505.17018", service=True)
def thinking(
    group: Group,
    ctx: RewardContext,
    *,
    endpoint: dict[str, Any],
    judge_wrong: bool = True,
    correct_by: str = "exact",
    with_pictures: bool = True,
) -> list[float | None]:
    """Quality of the thought in [0, 1], by a judge with pictures and question; 0 without a thought.

    With `judge_wrong: false`, rows that `correct_by` finds wrong score 0 unasked. An answer format without thoughts is not judged (None).

    Raises:
        RemoteError, ConfigError: the service stays down, or the endpoint is wrong.
        ValueError: the prompt's pixels are not in `ctx.media`, or `correct_by` is no reward by rule.
    """
    if group.prompt.answer_format == "answer_only":
        return [None] * len(group.rollouts)
    right = [True] * len(group.rollouts) if judge_wrong else right_rows(group, ctx, correct_by)
    seen = pictures(group, ctx) if with_pictures else ()

    def row(text: str, is_right: bool | None) -> JudgeQuestion | float | None:
        parsed = parse(text, group.prompt.answer_format)
        thought = (parsed.thought or "").strip()
        if is_right is None:
            return None
        if not thought or not is_right:
            return 0.0
        values = {"question": group.prompt.sample.question, "thought": thought, "answer": parsed.answer or "(none)"}
        return JudgeQuestion(template="thinking", values=values, check=score_check(), pictures=seen)

    rows = [row(rollout.text, ok) for rollout, ok in zip(group.rollouts, right, strict=True)]
    return judged(endpoint, "thinking", rows, lambda verdict: verdict["score"])
