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


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
