"""What asking costs: calls, retries, seconds, tokens, money, and why verdicts are missing. Safe for several threads."""

from __future__ import annotations

import threading
from collections import Counter

NAMES = (
    "judge/calls",
    "judge/retries",
    "judge/slowdowns",
    "judge/reasks",
    "judge/cache_hits",
    "judge/unjudged",
    "judge/prompt_tokens",
    "judge/completion_tokens",
    "judge/cost",
    "judge/request_seconds",
    "reward/wait_seconds",
)
"""`request_seconds`: inside HTTP exchanges, all threads together; `wait_seconds`: in back-off and while a service was down, likewise;
`slowdowns`: how often requests at once were halved because a service had too much to do."""


def _zeros() -> dict[str, float]:
    return {name: 0.0 for name in NAMES}


class Meters:
    """Counters since they were last read, and reasons (`column/reason`) since the beginning."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = _zeros()
        self._reasons: Counter[str] = Counter()

    def add(self, name: str, amount: float = 1.0) -> None:
        """Add to one of `NAMES`; KeyError for any other."""
        with self._lock:
            self._counts[name] = self._counts[name] + amount

    def unjudged(self, column: str, reason: str) -> None:
        """Count a verdict that could not be had."""
        with self._lock:
            self._counts["judge/unjudged"] += 1
            self._reasons[f"{column}/{reason}"] += 1

    def tokens(self, prompt: int, completion: int, *, price_in: float, price_out: float) -> None:
        """Count the tokens of one reply; prices are per million."""
        with self._lock:
            self._counts["judge/prompt_tokens"] += prompt
            self._counts["judge/completion_tokens"] += completion
            self._counts["judge/cost"] += (prompt * price_in + completion * price_out) / 1e6

    def peek(self) -> dict[str, float]:
        """The counters, without resetting them."""
        with self._lock:
            return dict(self._counts)

    def read(self) -> dict[str, float]:
        """The counters since the last call, for a step's log line."""
        with self._lock:
            counts, self._counts = self._counts, _zeros()
            return counts

    def reasons(self) -> dict[str, int]:
        with self._lock:
            return dict(sorted(self._reasons.items()))
