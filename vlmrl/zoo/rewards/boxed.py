r"""Reward `boxed`: the answer in `\boxed{...}` is right, as models trained on mathematics write it, with or without answer tags."""

from __future__ import annotations

import dataclasses

from vlmrl.answers.tags import answer_view, parse
from vlmrl.metrics.math import last_boxed
from vlmrl.protocols import RewardContext, reward
from vlmrl.rewards.checks import IMPORTS, Check, check_of
from vlmrl.types import Group, Sample


def boxed_answer(text: str, answer_format: str) -> str | None:
    r"""What a completion gives as its answer: the last box in the last answer block, or that block where it has no box; without an
    answer block the last box after the thought; None where there is neither. A box in the thought is not an answer.
    """
    answer = parse(text, answer_format).answer
    if answer is None:
        return last_boxed(answer_view(text))
    inner = last_boxed(answer)
    return answer if inner is None else inner


@reward("boxed", worker=True, imports=IMPORTS)
def boxed(group: Group, ctx: RewardContext, *, check: Check = "math") -> list[float | None]:
    r"""1 if the answer in `\boxed{...}` is right by `check` (`exact`, `choice` or `math`), else 0.

    A box needs no answer tags, an answer in tags no box: this reads answers and does not teach a form. The row's answer may have a
    box too. Rows that the check is not for are not judged (None): `rewards.checks.check_of`.
    """
    right = check_of(check, _unboxed(group.prompt.sample))
    if right is None:
        return [None] * len(group.rollouts)
    answers = [boxed_answer(rollout.text, group.prompt.answer_format) for rollout in group.rollouts]
    return [float(answer is not None and right(answer)) for answer in answers]


def _unboxed(sample: Sample) -> Sample:
    inner = last_boxed(sample.answer)
    return sample if inner is None else dataclasses.replace(sample, answer=inner)
