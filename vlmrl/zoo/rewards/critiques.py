"""Rewards of a critic: `critique_verdict` and `critique_gain_proposed`. Critique-RL, arXiv:2510.24320.

The policy is the critic: a row shows it a question with somebody's attempt, and it writes what it thinks of the attempt (the thought) and
whether it is right (the answer: `right` or `wrong`). Two stages of a recipe:

    stage 1  `critique_verdict`: 1 where the verdict is true. A critic that always says the same earns how often that is so.
    stage 2  `critique_gain_proposed`: an actor answers again with the critique in hand; R(its new answer) - R(the attempt), in {-1, 0, 1};
             beside it `critique_verdict` at a smaller weight, so that what stage 1 taught stays, and `beta` for the divergence from it

Rows: `meta.attempt` is the attempt, `meta.problem` the plain question (else the row's), the row's answer is the true one of that question.
Ours: the wording, a weight of 0.5 for the verdict in stage 2, and that the actor is a service that does not train.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.answers.tags import parse
from vlmrl.extras.judges.judges import JudgeQuestion
from vlmrl.extras.judges.material import pictures
from vlmrl.extras.judges.services import judged
from vlmrl.extras.judges.verdicts import Unreadable, Verdict
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.checks import IMPORTS, Check, check_of
from vlmrl.types import Group, Sample

LONGEST = 1000
"""Characters of an actor's answer."""


def attempt_of(sample: Sample) -> str:
    """
    Raises:
        ValueError: the row has no attempt.
    """
    attempt = sample.meta.get("attempt")
    if not isinstance(attempt, str) or not attempt.strip():
        raise ValueError(f"row '{sample.id}' ({sample.source}): meta.attempt must be a text, the attempt that is criticised")
    return attempt


def attempt_is_right(sample: Sample, check: Check) -> bool | None:
    """By the answer between its tags, or else the whole text; None if the check is not for the row."""
    right_answer = check_of(check, sample)
    attempt = attempt_of(sample)
    return None if right_answer is None else right_answer(parse(attempt, "think_or_not").answer or attempt.strip())


def verdict_of(text: str, answer_format: str) -> bool | None:
    """Whether the critic finds the attempt right; None where it does not say."""
    return {"right": True, "wrong": False}.get((parse(text, answer_format).answer or "").strip().strip(".").casefold())


@reward("critique_verdict", paper="arXiv:2510.24320", best=None, worker=True, imports=IMPORTS)
def critique_verdict(group: Group, ctx: RewardContext, *, check: Check = "exact") -> list[float | None]:
    """1 where the critic says truly whether the attempt is right, else 0. Rows without `meta.attempt` are not judged (None)."""
    sample = group.prompt.sample
    truth = attempt_is_right(sample, check) if "attempt" in sample.meta else None
    if truth is None:
        return [None] * len(group.rollouts)
    return [float(verdict_of(rollout.text, group.prompt.answer_format) is truth) for rollout in group.rollouts]


@reward("critique_gain_proposed", paper="arXiv:2510.24320", service=True)
def critique_gain_proposed(
    group: Group, ctx: RewardContext, *, endpoint: dict[str, Any], check: Check = "exact", with_pictures: bool = True
) -> list[float | None]:
    """Whether an actor's answer with the critique in hand is right, less whether the attempt was: -1, 0 or 1.

    A critique without a thought changes nothing: 0, unasked. Rows that the check is not for are not judged (None).

    Raises:
        RemoteError, ConfigError: the service stays down, or the endpoint is wrong.
        ValueError: the row has no attempt, or the prompt's pixels are not in `ctx.media`.
    """
    sample = group.prompt.sample
    right_answer, before = check_of(check, sample), attempt_is_right(sample, check)
    if right_answer is None or before is None:
        return [None] * len(group.rollouts)
    seen = pictures(group, ctx) if with_pictures else ()
    problem = sample.meta.get("problem")
    question = problem if isinstance(problem, str) and problem.strip() else sample.question

    def row(text: str) -> JudgeQuestion | float:
        critique = (parse(text, group.prompt.answer_format).thought or "").strip()
        if not critique:
            return 0.0
        values = {"question": question, "attempt": attempt_of(sample), "critique": critique}
        return JudgeQuestion(template="listener_refine", values=values, check=short_answer, pictures=seen)

    def score(verdict: Verdict) -> float:
        return float(right_answer(verdict["answer"])) - float(before)

    return judged(endpoint, "critique_gain_proposed", [row(rollout.text) for rollout in group.rollouts], score)


def short_answer(found: Mapping[str, Any]) -> Verdict:
    """{"answer": a short text}; a number counts as its text.

    Raises:
        Unreadable: it is not.
    """
    answer = found.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = f"{answer:g}"
    if not isinstance(answer, str) or len(answer) > LONGEST:
        raise Unreadable("missing", "'answer' must be a short text")
    return {"answer": answer}
