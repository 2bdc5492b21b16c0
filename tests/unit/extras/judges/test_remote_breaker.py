"""judges.throttle."""

from __future__ import annotations

import threading

import pytest

from tests.support.judge_server import FakeTime
from vlmrl.errors import Preempted, RemoteError
from vlmrl.extras.judges.throttle import FIRST_PROBE, LAST_PROBE, THRESHOLD, Breaker


def make(time: FakeTime, max_wait: float = 100.0, waits: list[float] | None = None) -> Breaker:
    return Breaker("the judge", max_wait=max_wait, timing=time.timing(), waited=(waits if waits is not None else []).append)


def fail(breaker: Breaker, times: int = THRESHOLD) -> None:
    for _ in range(times):
        breaker.failure("HTTP 503")


def never() -> bool:
    raise AssertionError("a closed breaker does not probe")


def test_opens_after_ten_failures_in_a_row_only() -> None:
    breaker = make(FakeTime())
    fail(breaker, 9)
    assert not breaker.open
    breaker.success()
    fail(breaker, 9)
    assert not breaker.open
    breaker.wait(never)
    breaker.failure("HTTP 503")
    assert THRESHOLD == 10
    assert breaker.open


def test_probes_with_growing_pauses_until_the_service_answers() -> None:
    time, waits = FakeTime(), []
    breaker = make(time, waits=waits)
    fail(breaker)
    answers = iter([False] * 6 + [True])
    at: list[float] = []
    breaker.wait(lambda: at.append(time.seconds - 1000) or next(answers))
    assert at == [1, 3, 7, 15, 31, 61, 91]  # 1, 2, 4, 8, 16, then 30 at most
    assert (FIRST_PROBE, LAST_PROBE) == (1, 30)
    assert sum(waits) == 91
    assert not breaker.open


def test_ends_after_max_wait_since_the_first_failure() -> None:
    time = FakeTime()
    breaker = make(time, max_wait=50)
    breaker.failure("HTTP 500")
    time.sleep(20)
    fail(breaker, 9)
    at: list[float] = []
    with pytest.raises(RemoteError, match=r"the judge has not answered for 50 s \(max_wait 50 s\), last: HTTP 503.*same command") as caught:
        breaker.wait(lambda: bool(at.append(time.seconds - 1000)))
    assert at == [21, 23, 27, 35, 50]  # the last probe comes when time is up, not after
    assert caught.value.exit_code == 69
    with pytest.raises(RemoteError, match="50 s"):
        breaker.wait(never)  # dead: nobody asks again


def test_a_reply_that_was_on_its_way_closes_it() -> None:
    time = FakeTime()
    breaker = make(time)
    fail(breaker)
    breaker.success()
    breaker.wait(never)
    assert time.slept == []


def test_a_stop_ends_the_wait() -> None:
    time = FakeTime(stop=lambda: time.seconds >= 1005)
    breaker = make(time, max_wait=1800)
    fail(breaker)
    with pytest.raises(Preempted):
        breaker.wait(lambda: False)
    assert time.seconds == 1005


def test_one_thread_probes_for_all() -> None:
    breaker = make(FakeTime())
    fail(breaker)
    probes: list[int] = []
    started = threading.Barrier(8)

    def enter() -> None:
        started.wait(10)
        breaker.wait(lambda: bool(probes.append(1)) or len(probes) == 3)

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(probes) == 3
    assert not breaker.open
