"""judges.throttle: fewer requests at once after an overload, more after answers; and the client that goes by it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.judge_server import FakeTime, Reply, closes, score, serving, status
from vlmrl.errors import Preempted
from vlmrl.extras.judges.judges import JudgeQuestion
from vlmrl.extras.judges.throttle import OVERLOAD, Limit
from vlmrl.extras.judges.verdicts import score_check

ASK = JudgeQuestion(
    template="judge", values={"question": "How many?", "gold": "3", "answer": "three", "instructions": ""}, check=score_check()
)
PATIENCE = 30.0
"""Seconds after which a barrier that should have opened fails the test."""


def asks(count: int) -> list[JudgeQuestion]:
    return [replace(ASK, values={**ASK.values, "answer": str(number)}) for number in range(count)]


def make(most: int, time: FakeTime | None = None, waits: list[float] | None = None) -> Limit:
    return Limit(most, timing=(time or FakeTime()).timing(), waited=(waits if waits is not None else []).append)


def test_an_overload_halves_it_once_for_all_that_had_begun() -> None:
    limit = make(8)
    assert limit.now == 8
    assert limit.overloaded(0)
    assert limit.now == 4
    assert not limit.overloaded(0)  # seven more of the same wave
    assert limit.now == 4
    assert limit.overloaded(1)
    assert limit.overloaded(2)
    assert limit.overloaded(3)
    assert (limit.now, limit.rounds) == (1, 4)  # never below 1


def test_a_round_of_answers_adds_one() -> None:
    limit = make(8)
    limit.overloaded(0)
    limit.overloaded(1)
    assert limit.now == 2
    # 2 + 1/2 = 2.5, + 1/2.5 = 2.9, + 1/2.9 = 3.24
    seen = []
    for _ in range(3):
        limit.answered()
        seen.append(limit.now)
    assert seen == [2, 2, 3]
    for _ in range(100):
        limit.answered()
    assert limit.now == 8  # never above what the recipe allows


def test_a_request_that_began_before_a_decrease_has_had_its_say() -> None:
    limit = make(8)
    with limit.request() as first, limit.request() as second:
        assert (first, second) == (0, 0)
        assert limit.overloaded(first)
        with limit.request() as third:
            assert third == 1
            assert not limit.overloaded(second)
            assert limit.overloaded(third)
    assert limit.now == 2


def test_only_as_many_as_allowed_are_inside() -> None:
    limit = make(2)
    inside, peak, guard, both = 0, 0, threading.Lock(), threading.Barrier(2)

    def one() -> None:
        nonlocal inside, peak
        with limit.request():
            with guard:
                inside += 1
                peak = max(peak, inside)
            both.wait(PATIENCE)
            with guard:
                inside -= 1

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert (peak, both.broken) == (2, False)


def test_a_request_leaves_even_when_it_fails() -> None:
    limit = make(1)
    with pytest.raises(ValueError, match="boom"), limit.request():
        raise ValueError("boom")
    with limit.request() as begun:
        assert begun == 0


def test_a_pause_that_the_service_asked_for_holds_for_everyone() -> None:
    time, waits = FakeTime(), []
    limit = make(4, time, waits)
    limit.close_for(7)
    limit.close_for(3)  # the longer one counts
    with limit.request():
        assert time.seconds == 1007
    with limit.request():
        assert time.seconds == 1007
    assert sum(waits) == 7


def test_a_stop_ends_waiting_for_a_turn() -> None:
    stopped = False
    limit = make(1, FakeTime(stop=lambda: stopped))
    with limit.request():
        stopped = True
        with pytest.raises(Preempted), limit.request():
            raise AssertionError("there is no second turn")


@given(st.integers(1, 64), st.lists(st.booleans(), max_size=200))
def test_it_stays_between_one_and_what_the_recipe_allows(most: int, answers: list[bool]) -> None:
    limit = make(most)
    for answered in answers:
        before = limit.now
        if answered:
            limit.answered()
            assert before <= limit.now <= before + 1
        else:
            limit.overloaded(limit.rounds)
            assert limit.now <= before
        assert 1 <= limit.now <= most


class Gate:
    """Holds requests until `together` of them are there, and knows how many were there at most."""

    def __init__(self, together: int):
        self.barrier = threading.Barrier(together)
        self.here = 0
        self.peak = 0
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any], reply: Any) -> Reply:
        with self._lock:
            self.here += 1
            self.peak = max(self.peak, self.here)
        self.barrier.wait(PATIENCE)
        with self._lock:
            self.here -= 1
        return reply(body)


def test_eight_that_are_told_to_slow_down_go_on_as_four() -> None:
    first, then = Gate(8), Gate(4)
    script = [lambda body: first(body, status(429))] * 8
    with serving(*script, otherwise=lambda body: then(body, score(1.0)), concurrency=8) as s:
        judge = s.services.chat(s.endpoint)
        assert judge.ask_all("judge", asks(8)) == [{"score": 1.0}] * 8
        assert (first.peak, then.peak) == (8, 4)
        read = s.services.read()
        assert read["judge/slowdowns"] == 1  # one for the wave, not eight
        assert read["judge/calls"] == 16
        # 4 and eight answers: 4 + 1/4 = 4.25, 4.485, 4.708, 4.921, 5.124, 5.319, 5.507, 5.689
        assert judge.client.limit.now == read["judge/concurrency"] == 5


@pytest.mark.parametrize(
    ("act", "slower"), [(status(code), f"http_{code}" in OVERLOAD) for code in (408, 429, 500, 502, 503, 504)] + [(closes(), False)]
)
def test_what_slows_down(act: Any, slower: bool) -> None:
    # two at once, so that one answer afterwards does not hide the decrease: 2 -> 1, and 1 + 1/1 = 2 again
    with serving(act, score(1.0), concurrency=2) as s:
        assert s.services.chat(s.endpoint).ask_all("judge", asks(1)) == [{"score": 1.0}]
        assert s.services.read()["judge/slowdowns"] == slower


def test_timeouts_slow_down() -> None:
    late = threading.Event()
    with serving(lambda _: Reply(body=b"{}", gate=late), score(1.0), concurrency=4, timeout=0.2) as s:
        judge = s.services.chat(s.endpoint)
        assert judge.ask_all("judge", asks(1)) == [{"score": 1.0}]
        assert s.services.meters.peek()["judge/slowdowns"] == 1
        assert judge.client.limit.now == 2  # 4 -> 2, and 2 + 1/2


def test_refused_requests_are_answers() -> None:
    with serving(status(429), otherwise=status(400), concurrency=2) as s:
        judge = s.services.chat(s.endpoint)
        judge.ask_all("judge", asks(1))
        assert judge.client.limit.now == 2  # 1, and one answer


def test_retry_after_of_one_request_holds_back_the_others() -> None:
    with serving(status(429, {"Retry-After": "40"}), score(1.0), max_wait=60.0) as s:
        judge = s.services.chat(s.endpoint)
        assert judge.ask_all("judge", asks(2)) == [{"score": 1.0}] * 2
        assert s.time.seconds == 1040  # both after the pause, which is waited for once
        assert s.services.meters.peek()["reward/wait_seconds"] == 40


def test_the_deadline_of_a_verdict_does_not_run_while_it_waits_for_its_turn() -> None:
    with serving(otherwise=score(1.0), concurrency=1, deadline=1.0) as s:
        judge = s.services.chat(s.endpoint)
        judge.client.limit.close_for(500)
        assert judge.ask_all("judge", asks(1)) == [{"score": 1.0}]
        assert s.services.meters.reasons() == {}


def test_services_that_nobody_asked_have_no_metrics() -> None:
    with serving() as s:
        assert s.services.read() == {}
