"""Locks by name: one at a time per name, names apart from each other, nothing left behind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from vlmrl.media.keyed_lock import KeyedLock


def test_one_name_is_held_by_one_thread_at_a_time() -> None:
    lock, inside, most, total = KeyedLock(), [0], [0], [0]

    def work(_: int) -> None:
        with lock.of("a"):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            before = total[0]
            threading.Event().wait(0.001)  # another thread would come in here
            total[0] = before + 1
            inside[0] -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(40)))
    assert (most[0], total[0], len(lock)) == (1, 40, 0)


def test_names_do_not_wait_for_each_other() -> None:
    lock, meet = KeyedLock(), threading.Barrier(2, timeout=20)

    def work(name: str) -> None:
        with lock.of(name):
            meet.wait()  # only passes when both are inside

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ["a", "b"]))
    assert len(lock) == 0


def test_a_failure_gives_the_turn_back() -> None:
    lock = KeyedLock()
    with pytest.raises(ZeroDivisionError), lock.of("a"):
        _ = 1 / (len(lock) - 1)
    assert len(lock) == 0
    with lock.of("a"), lock.of("b"):
        assert len(lock) == 2
