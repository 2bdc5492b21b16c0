"""Diversity of the answers of one group (distinct n-grams), for variance-aware sampling. arXiv:2509.21268."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def distinct_n(answers: Sequence[Sequence[Hashable]], *, n: int = 2) -> float | None:
    """Share of the n-grams of all answers (tokens or words) that are different, in (0, 1]: 1 where none repeats, 1 / G for G equal
    answers without repetition of their own. Larger is more diverse. None where no answer has n tokens.

    Raises:
        ValueError: `n` is below 1.
    """
    if n < 1:
        raise ValueError(f"distinct_n needs n of at least 1, got {n}")
    grams = [tuple(answer[i : i + n]) for answer in answers for i in range(len(answer) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None
