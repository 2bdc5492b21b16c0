"""Clock, sleep and the randomness of back-off in one place, so that tests of half an hour run in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from vlmrl import rng
from vlmrl.errors import Preempted

SLICE = 1.0
"""Longest sleep in seconds between two looks at whether the run was asked to stop."""


def _jitter(name: str, attempt: int) -> float:
    return rng.uniform(0, "backoff", name, attempt)


def _never() -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What a client knows about time. `stop` says whether the run was asked to end; it is looked at while waiting."""

    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    """Seconds since the epoch: for `Retry-After` as a date."""
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[str, int], float] = _jitter
    """(name of the request, attempt) -> a number in [0, 1)."""
    stop: Callable[[], bool] = _never

    def pause(self, seconds: float) -> None:
        """Sleep in slices.

        Raises:
            Preempted: the run was asked to stop.
        """
        end = self.now() + seconds
        while (left := end - self.now()) > 0:
            self.check_stop()
            self.sleep(min(left, SLICE))

    def check_stop(self) -> None:
        """
        Raises:
            Preempted: the run was asked to stop.
        """
        if self.stop():
            raise Preempted("stopped by a signal while waiting for a reward service; run the same command to go on")
