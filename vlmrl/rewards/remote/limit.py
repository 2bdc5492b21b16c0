"""How many requests may be under way at one service: fewer after signs of overload, one more per round of answers (W8).

Additive increase, multiplicative decrease, as TCP does it: every answer adds 1 / limit, a request that met an overload halves the
limit, once for all requests that had begun before. It never leaves 1 to the endpoint's `concurrency`, where it starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vlmrl.rewards.remote.timing import SLICE, Timing

DECREASE = 0.5
"""What is left of the limit after an overload."""
OVERLOAD = frozenset({"http_408", "http_429", "http_503", "http_504", "http_529", "timeout"})
"""Reasons of failures (`exchange.Failure.reason`) that say a service has too much to do. A lost connection or a 500 does not."""


class Limit:
    """Shared by all threads that use one service.

    Args:
        most: the endpoint's `concurrency`.
        waited: told the seconds that a thread waited because the service asked for a pause.
    """

    def __init__(self, most: int, *, timing: Timing, waited: Callable[[float], None]):
        self.most = most
        self._timing = timing
        self._waited = waited
        self._changed = threading.Condition()
        """Guards the fields below; never held while pausing."""
        self._limit = float(most)
        self._running = 0
        self._round = 0
        """Number of decreases so far: a request that began under an older number has had its say."""
        self._closed_until = timing.now()

    @property
    def now(self) -> int:
        """Requests that may be under way at once."""
        with self._changed:
            return int(self._limit)

    @property
    def rounds(self) -> int:
        """How often the limit was lowered."""
        with self._changed:
            return self._round

    @contextmanager
    def request(self) -> Iterator[int]:
        """Within the block one request is under way. Waits for its turn; gives the round, for `overloaded`.

        Raises:
            Preempted: the run was asked to stop.
        """
        self._wait_for_service()
        with self._changed:
            while self._running >= int(self._limit):
                self._timing.check_stop()
                self._changed.wait(SLICE)  # in slices, so that a stop is seen
            self._running += 1
            begun = self._round
        try:
            yield begun
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def answered(self) -> None:
        """The service answered a request, whatever it said."""
        with self._changed:
            self._limit = min(float(self.most), self._limit + 1 / self._limit)
            self._changed.notify_all()

    def overloaded(self, begun: int) -> bool:
        """A request that began in round `begun` met an overload; whether the limit was lowered for it."""
        with self._changed:
            if begun != self._round:
                return False
            self._limit = max(1.0, self._limit * DECREASE)
            self._round += 1
            return True

    def close_for(self, seconds: float) -> None:
        """The service asked everyone for a pause (`Retry-After`): no request begins before."""
        with self._changed:
            self._closed_until = max(self._closed_until, self._timing.now() + seconds)

    def _wait_for_service(self) -> None:
        while True:
            with self._changed:
                left = self._closed_until - self._timing.now()
            if left <= 0:
                return
            before = self._timing.now()
            self._timing.pause(left)
            self._waited(self._timing.now() - before)
