"""Locks by key: one thread at a time works on a key, others work on other keys meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class KeyedLock:
    """A lock for every key in use; it is forgotten when nobody holds it or waits for it. Not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, tuple[threading.Lock, int]] = {}

    def __len__(self) -> int:
        """Keys in use."""
        return len(self._locks)

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """Wait until nobody else holds `key`, and hold it within the block."""
        with self._guard:
            # counted before waiting, so that a holder that leaves does not forget a lock for which someone waits
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)
