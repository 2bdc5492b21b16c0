"""Rewards `count`, `number`, `regression_mra`, `inverse_error`: exact counts, and measures of a regression of different shape.

Rows say which they are for: `gt.count` is a whole number, `gt.number` a quantity. A sample without it is not judged (None), so that
the columns of a mixture of tasks do not disturb each other. What cannot be read as one number scores 0.
"""

from __future__ import annotations

from collections.abc import Callable

from vlmrl.answers.tags import parse
from vlmrl.metrics.numbers import MRA_THRESHOLDS, mean_relative_accuracy, parse_count, parse_number, relative_error
from vlmrl.protocols import RewardContext, reward
from vlmrl.types import Group


@reward("count")
def count(group: Group, ctx: RewardContext) -> list[float | None]:
    """1 if the answer is the true whole number (`gt.count`), as digits or as a word, else 0."""
    gold = group.prompt.sample.gt.get("count")
    return _scored(group, None if gold is None else lambda text: float(parse_count(text) == int(gold)))


@reward("number", paper="arXiv:2604.08539")
def number(group: Group, ctx: RewardContext) -> list[float | None]:
    """Mean relative accuracy of the answered quantity (`gt.number`), in [0, 1] in steps of 0.1.

    The regression reward of OpenVLThinkerV2: the share of ten thresholds that the relative error stays below. Its code compares with
    `<`, here it is `<=`; that decides only for errors exactly at a threshold.
    """
    return _number(group, mean_relative_accuracy)


@reward("regression_mra", paper="arXiv:2503.21776")
def regression_mra(group: Group, ctx: RewardContext) -> list[float | None]:
    """Mean relative accuracy of `gt.number` as Video-R1 computes it, in [0, 1] in steps of 0.1.

    Its error is |answer - truth| / (|truth| + 1e-8), which must be below 1 - t for each threshold t; `number` rounds the error and
    takes it at the threshold too. The two differ for errors at a threshold of numbers near 0 or far above 1, and by the last bit.
    """

    def measure(pred: float, gold: float) -> float:
        error = abs(pred - gold) / (abs(gold) + 1e-8)
        return sum(error < 1 - t for t in MRA_THRESHOLDS) / len(MRA_THRESHOLDS)

    return _number(group, measure)


@reward("inverse_error")
def inverse_error(group: Group, ctx: RewardContext, *, cap: float = 20.0) -> list[float | None]:
    """1 / (relative error of `gt.number`), capped and divided by `cap` so that the exact answer gets 1: a heavy-tailed reward.

    Most answers score near 0 and the few close ones far more: the shape that G2RPO (arXiv:2604.08539) is made for. Ours.

    Raises:
        ValueError: `cap` is not positive.
    """
    if cap <= 0:
        raise ValueError(f"inverse_error: cap must be positive, got {cap}")
    # min(1 / e, cap) / cap = 1 / max(1, cap * e), which has no division by e = 0
    return _number(group, lambda pred, gold: 1 / max(1.0, cap * relative_error(pred, gold)))


def _number(group: Group, measure: Callable[[float, float], float]) -> list[float | None]:
    gold = group.prompt.sample.gt.get("number")
    if gold is None:
        return [None] * len(group.rollouts)

    def score(text: str) -> float:
        pred = parse_number(text)
        return 0.0 if pred is None else measure(pred, float(gold))

    return _scored(group, score)


def _scored(group: Group, score: Callable[[str], float] | None) -> list[float | None]:
    if score is None:
        return [None] * len(group.rollouts)
    answers = [parse(rollout.text, group.prompt.answer_format).answer for rollout in group.rollouts]
    return [0.0 if answer is None else score(answer) for answer in answers]
