"""What thinking costs and brings, from the raw answers of a system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Thought:
    """One answer."""

    correct: float
    """Score in [0, 1]; 1 counts as correct."""
    thinks: bool
    """A closed thought that is not blank."""
    tokens: int
    """All output tokens."""
    well_formed: bool = True
    truncated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ThoughtSummary:
    """Rates over all answers; conditional means are None where there is no such answer."""

    think_rate: float
    mean_tokens: float
    tokens_per_correct: float | None
    accuracy_given_think: float | None
    accuracy_given_skip: float | None
    format_rate: float
    truncation_rate: float


def summarize(answers: Sequence[Thought]) -> ThoughtSummary:
    """Raises ValueError without answers."""
    if not answers:
        raise ValueError("no answers to summarise")
    n = len(answers)
    tokens = sum(a.tokens for a in answers)
    right = sum(a.correct >= 1 for a in answers)
    return ThoughtSummary(
        think_rate=sum(a.thinks for a in answers) / n,
        mean_tokens=tokens / n,
        tokens_per_correct=tokens / right if right else None,
        accuracy_given_think=_mean([a.correct for a in answers if a.thinks]),
        accuracy_given_skip=_mean([a.correct for a in answers if not a.thinks]),
        format_rate=sum(a.well_formed for a in answers) / n,
        truncation_rate=sum(a.truncated for a in answers) / n,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Whether thoughts lead to the answers that are given. Shares in [0, 1]; None where nothing was judged that could tell."""

    n: int
    judged: int
    """Answers with a verdict."""
    accuracy: float
    consistency: float | None
    """Consistent ones among the answers with a verdict."""
    inconsistency_rate: float | None
    """IR: answers found inconsistent, over all answers. None where only right answers were judged: it would be too small."""
    faithful_accuracy: float | None
    """Answers that are right and found consistent, over all answers."""
    consistency_given_correct: float | None
    """Consistent ones among the right answers with a verdict."""


def agreement(right: Sequence[bool], consistent: Sequence[bool | None], *, wrong_judged: bool = True) -> Agreement:
    """Consistency of thoughts with answers (IR as in Faithful GRPO, arXiv:2604.08476).

    Args:
        consistent: for each answer whether its thought's own conclusion is that answer; None without a verdict. Such an answer counts as
            neither consistent nor inconsistent.
        wrong_judged: whether wrong answers were judged too. Rules judge right ones only; then there is no rate over all answers.

    Raises:
        ValueError: no answers, or verdicts of another number.
    """
    if not right or len(right) != len(consistent):
        raise ValueError(f"agreement: {len(right)} answers and {len(consistent)} verdicts; give one verdict (or None) per answer")
    n, pairs = len(right), list(zip(right, consistent, strict=True))
    verdicts = [verdict for verdict in consistent if verdict is not None]
    of_right = [verdict for is_right, verdict in pairs if is_right and verdict is not None]
    whole = bool(verdicts) and wrong_judged
    return Agreement(
        n=n,
        judged=len(verdicts),
        accuracy=sum(map(bool, right)) / n,
        consistency=_mean(verdicts) if whole else None,
        inconsistency_rate=sum(not verdict for verdict in verdicts) / n if whole else None,
        faithful_accuracy=sum(of_right) / n if verdicts else None,
        consistency_given_correct=_mean(of_right),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
