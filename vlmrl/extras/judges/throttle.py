"""When a request may be sent: the clock, the adaptive limit of concurrent requests (AIMD), and the circuit breaker.

The limit is additive increase, multiplicative decrease, as in TCP: every answer adds 1 / limit, a request that met an overload halves
the limit, once for all requests that had begun before. It stays between 1 and the endpoint's `concurrency`, where it starts. After
several failures in a row the breaker opens: only one thread still asks (a probe), until the service answers or the time is up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vlmrl import rng
from vlmrl.errors import Preempted, RemoteError

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


THRESHOLD = 10
"""Consecutive failures of all threads that open the breaker."""
FIRST_PROBE, LAST_PROBE = 1.0, 30.0
"""Seconds before the first probe; each next one comes after twice the time, up to the second."""


class Breaker:
    """Shared by all threads that use one service. `name` stands in the message."""

    def __init__(self, name: str, *, max_wait: float, timing: Timing, waited: Callable[[float], None], threshold: int = THRESHOLD):
        self.name = name
        self.max_wait = max_wait
        self.threshold = threshold
        self._timing = timing
        self._waited = waited
        self._lock = threading.Lock()
        """Guards the fields below; never held while waiting."""
        self._probing = threading.Lock()
        """Held by the thread that probes; the others queue up behind it."""
        self._failures = 0
        self._since = 0.0
        self._last = ""
        self._dead: str | None = None

    @property
    def open(self) -> bool:
        with self._lock:
            return self._failures >= self.threshold

    def success(self) -> None:
        """The service answered, whatever it said."""
        with self._lock:
            self._failures = 0

    def failure(self, what: str) -> None:
        """The service did not answer, or not as a service of its kind does."""
        with self._lock:
            if self._failures == 0:
                self._since = self._timing.now()
            self._failures += 1
            self._last = what

    def wait(self, probe: Callable[[], bool]) -> None:
        """Return at once while closed. While open, one thread probes with growing pauses and the others wait for it.

        Raises:
            RemoteError: the service did not come back within `max_wait` seconds of its first failure in the row; from then on at once.
            Preempted: the run was asked to stop.
        """
        if not self.open:
            return
        with self._probing:
            pause = FIRST_PROBE
            while self.open:
                left = self._left()
                before = self._timing.now()
                self._timing.pause(min(pause, left))
                self._waited(self._timing.now() - before)
                if probe():
                    self.success()
                pause = min(2 * pause, LAST_PROBE)

    def _left(self) -> float:
        """Seconds until waiting ends."""
        with self._lock:
            down = self._timing.now() - self._since
            if self._dead is None and down >= self.max_wait:
                self._dead = (
                    f"{self.name} has not answered for {down:.0f} s (max_wait {self.max_wait:.0f} s), last: {self._last}. Nothing was "
                    "scored in its place; start it again, then run the same command to go on"
                )
            if self._dead is not None:
                raise RemoteError(self._dead)
            return self.max_wait - down
