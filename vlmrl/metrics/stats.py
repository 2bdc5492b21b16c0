"""Statistics of several answers to a question: pass@k and majority voting. Intervals and tests are in `metrics.intervals`."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Compute the chance that at least one of k answers drawn from n (of which `correct` are right) is right.

    Raises:
        ValueError: not 0 <= correct <= n, or not 1 <= k <= n.
    """
    _check_draw(n, correct, k)
    # 1 - C(n - c, k) / C(n, k), exact in integers; comb is 0 where fewer than k are wrong
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_all_k(n: int, correct: int, k: int) -> float:
    """Compute pass^k: chance that all of k answers drawn from n (of which `correct` are right) are right. Errors as `pass_at_k`."""
    _check_draw(n, correct, k)
    return math.comb(correct, k) / math.comb(n, k)


def majority(answers: Sequence[str | None]) -> str | None:
    """Find the most frequent answer (maj@k), the first of equals. None, an answer that could not be read, has no vote."""
    votes: dict[str, int] = {}
    for answer in answers:
        if answer is not None:
            votes[answer] = votes.get(answer, 0) + 1
    return max(votes, key=lambda answer: votes[answer]) if votes else None


def _check_draw(n: int, correct: int, k: int) -> None:
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"cannot draw k={k} of n={n} answers with {correct} correct; needs 0 <= correct <= n and 1 <= k <= n")
