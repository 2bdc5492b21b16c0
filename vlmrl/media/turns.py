"""Locks by name, so that work on one thing is done by one thread at a time while work on other things goes on."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Turns:
    """A lock for every name that is in use; it is forgotten when nobody holds it or waits for it. Not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}

    def __len__(self) -> int:
        """Names in use."""
        return len(self._locks)

    @contextmanager
    def of(self, name: Hashable) -> Iterator[None]:
        """Wait until nobody else holds `name`, and hold it within the block."""
        with self._guard:
            lock, users = self._locks.get(name, (threading.Lock(), 0))
            self._locks[name] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[name]
                if users == 1:
                    del self._locks[name]
                else:
                    self._locks[name] = (lock, users - 1)
