"""Reward a number by its distance from the true one. A reward from outside the package: name this module under `plugins:`.

    rewards: [{name: near_number, scale: 2.0}, {name: format, weight: 0.1}]

A reward is a function of a group (one prompt with all its answers) and gives one number per answer. `None` means that it cannot judge.
Keyword-only parameters are its options; `vlmrl check` compares them with the recipe.
"""

from __future__ import annotations

import math

from vlmrl.answers.tags import parse
from vlmrl.metrics.numbers import parse_number
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("near_number", best=1.0)
def near_number(group: Group, ctx: RewardContext, *, scale: float = 1.0) -> list[float | None]:
    """exp(-|answer - truth| / scale) in [0, 1]; 0 for an answer that is no number, None for a row without `gt.number`.

    `best` is what the gold answer must reach: a run stops before its first step if it does not.

    Raises:
        ValueError: scale not above 0.
    """
    if scale <= 0:
        raise ValueError(f"near_number: scale is {scale}; it must be above 0")
    truth = group.prompt.sample.gt.get("number")
    if truth is None:
        return [None] * len(group.rollouts)
    out: list[float | None] = []
    for rollout in group.rollouts:
        answer = parse(rollout.text, group.prompt.answer_format).answer
        number = None if answer is None else parse_number(answer)
        out.append(0.0 if number is None else math.exp(-abs(number - float(truth)) / scale))
    return out
