"""Circuit breaker: after several failures in a row nobody asks a service any more but one prober, until it answers or time is up."""

from __future__ import annotations

import threading
from collections.abc import Callable

from vlmrl.errors import RemoteError
from vlmrl.rewards.remote.timing import Timing

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
