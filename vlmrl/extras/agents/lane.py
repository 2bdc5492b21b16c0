"""A thread that does one thing after the other: what somebody waits for at once, and what can wait while nobody does."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Lane:
    """Two queues and one thread. Whatever is asked of it by `submit` goes before all that was put off by `later`."""

    def __init__(self, name: str, room: Callable[[], bool]):
        """`room` is asked on the thread before each thing that can wait; after a no it is asked again once something else was done."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._room = room
        self._waiting = 0
        """Things that somebody waits for."""
        self._put_off: deque[Callable[[], object]] = deque()
        self._asked = self._closed = False
        self._lock = threading.Lock()

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Do it behind what was submitted before.

        Raises:
            RuntimeError: the lane is closed.
        """
        with self._lock:
            self._waiting += 1
        return self._thread.submit(self._do, work, *arguments)

    def later(self, work: Callable[[], object]) -> None:
        """Do it when nobody waits, in the order of asking; never, where the lane is closed before."""
        with self._lock:
            self._put_off.append(work)
        self._go_on()

    def close(self) -> None:
        """Wait for what is being done, and forget the rest."""
        with self._lock:
            self._closed = True
            self._put_off.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _do(self, work: Callable[..., T], *arguments: Any) -> T:
        with self._lock:
            self._waiting -= 1
        try:
            return work(*arguments)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Ask the thread for one of the things that can wait."""
        with self._lock:
            if not (self._closed or self._asked or self._waiting) and self._put_off:
                self._asked = True
                self._thread.submit(self._idle)

    def _idle(self) -> None:
        with self._lock:
            self._asked = False
            if self._waiting or not self._put_off or not self._room():
                return
            work = self._put_off.popleft()
        try:
            work()
        finally:
            self._go_on()
