"""W7 to W9: a reward service that is down, slow or hostile, through the reward runner's border, with the calls counted."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import group, sample
from tests.support.judge_server import (
    Act,
    FakeTime,
    Reply,
    closes,
    gzip_bomb,
    hangs,
    html,
    megabytes,
    raw,
    score,
    serving,
    status,
    text,
)
from vlmrl.errors import RemoteError
from vlmrl.extras.judges.rewards.judge import judge
from vlmrl.extras.judges.services import Services, session
from vlmrl.protocols import RewardContext

CTX = RewardContext()
OF = sample("gold", gt={})


def texts(count: int, start: int = 0) -> Any:
    return group([f"<answer>{i}</answer>" for i in range(start, start + count)], OF, answer_format="answer_only")


GARBLED = {
    "html": html(),
    "gzip bomb": gzip_bomb(50 * 2**20),
    "10 MB": megabytes(),
    "not gzip": raw(b"plain", {"Content-Encoding": "gzip"}),
    "half gzip": raw(b"\x1f\x8b\x08\x00", {"Content-Encoding": "gzip"}),
    "brotli": raw(b"{}", {"Content-Encoding": "br"}),
    "list": raw(b"[]"),
    "nan": raw(b'{"choices": NaN}'),
    "deep": raw(b"[" * 200000),
    "bytes": raw(b"\xff\xfe"),
    "half": raw(b'{"choices": ', {"Content-Length": "4000", "Connection": "close"}),
    "closes": closes(),
}
LIES = {
    "no choices": raw(b"{}"),
    "null": raw(b'{"choices": [{"message": {"content": null}}]}'),
    "wrong id": text('{"id": "0123456789ab", "score": 1}'),
    "score nan": text('{"id": "x", "score": NaN}'),
    "1e9": score(1e9),
    "text": score("1"),
    "prose": text("Excellent! 1.0"),
}


@pytest.mark.parametrize("act", GARBLED.values(), ids=GARBLED)
def test_garbage_on_the_wire_is_retried_and_never_scored(act: Act) -> None:
    with serving(act, act, score(0.5), timeout=0.5) as s:
        assert judge(texts(1), CTX, endpoint=s.endpoint) == [0.5]
        assert s.server.calls == 3
        assert sum(s.time.slept) == 1.5


@pytest.mark.parametrize("act", LIES.values(), ids=LIES)
def test_a_lie_is_asked_again_and_then_missing(act: Act) -> None:
    with serving(act, act, act, score(0.5)) as s:
        column = judge(texts(2), CTX, endpoint=s.endpoint)
        assert column == [None, 0.5]
        assert sum(column.reasons.values()) == 1  # type: ignore[attr-defined]
        assert s.server.calls == 4
        assert s.time.slept == []  # the service is up: no waiting


def test_nothing_but_garbage_is_an_outage() -> None:
    with serving(otherwise=html(), max_wait=120.0) as s, pytest.raises(RemoteError, match="not JSON"):
        judge(texts(3), CTX, endpoint=s.endpoint)


def test_a_bomb_does_not_fill_the_memory() -> None:
    bomb = gzip_bomb(100 * 2**20)
    with serving(bomb, score(0.5)) as s:
        tracemalloc.start()
        try:
            assert judge(texts(1), CTX, endpoint=s.endpoint) == [0.5]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 12 * 2**20


def test_a_server_that_hangs_times_out_and_is_asked_again() -> None:
    with serving(hangs(), score(0.5), timeout=0.05) as s:
        assert judge(texts(1), CTX, endpoint=s.endpoint) == [0.5]
        assert s.server.calls == 2


def test_one_slow_answer_in_eight_does_not_change_the_others() -> None:
    slow = threading.Event()

    def act(body: dict[str, Any]) -> Reply:
        whole = score(0.5)(body)
        with lock:
            first = not seen
            seen.append(1)
        return Reply(body=whole.body, gate=slow) if first else whole

    lock, seen = threading.Lock(), []
    with serving(otherwise=act, concurrency=8, timeout=0.3) as s:
        assert judge(texts(8), CTX, endpoint=s.endpoint) == [0.5] * 8
        assert s.server.calls == 9  # the straggler was asked again, nobody else


def test_a_server_that_refuses_and_comes_back(tmp_path: Path) -> None:
    """Down for a minute: every verdict arrives in order, and none is asked for twice."""
    with serving(otherwise=score(0.75), folder=tmp_path) as s:
        assert judge(texts(4), CTX, endpoint=s.endpoint) == [0.75] * 4
        s.server.stop()
        back_at = s.time.seconds + 60
        original = s.time.sleep

        started: list[int] = []

        def sleep(seconds: float) -> None:
            original(seconds)
            if s.time.seconds >= back_at and not started:
                started.append(1)
                s.server.start()

        timing = type(s.services.timing)(now=lambda: s.time.seconds, sleep=sleep, jitter=lambda n, k: 1.0)
        with session(Services(tmp_path, rank=1, timing=timing)) as again:
            assert judge(texts(8), CTX, endpoint=s.endpoint) == [0.75] * 8
            assert again.meters.peek()["judge/cache_hits"] == 4
            assert again.meters.peek()["reward/wait_seconds"] >= 60
            assert again.meters.reasons() == {}
        answered = s.server.answered
        assert len(answered) == len(set(answered)) == 8


def test_an_outage_raises_69_and_the_next_run_goes_on_where_it_was(tmp_path: Path) -> None:
    with serving(*[score(0.5)] * 3, otherwise=status(503), canary=status(503), folder=tmp_path, max_wait=200.0) as s:
        with pytest.raises(RemoteError, match="HTTP 503") as caught:
            judge(texts(8), CTX, endpoint=s.endpoint)
        assert caught.value.exit_code == 69
        before = s.server.calls
        s.server.otherwise = score(0.25)
        s.server.canary = None
        with session(Services(tmp_path, timing=FakeTime().timing())) as again:
            assert judge(texts(8), CTX, endpoint=s.endpoint) == [0.5] * 3 + [0.25] * 5
            assert again.meters.peek()["judge/cache_hits"] == 3
        assert s.server.calls - before == 5


def test_waiting_threads_all_learn_of_the_end() -> None:
    with serving(otherwise=status(503), max_wait=30.0, concurrency=8) as s:
        with pytest.raises(RemoteError, match="has not answered"):
            judge(texts(32), CTX, endpoint=s.endpoint)
        assert s.server.calls <= 8 * 10 + 8
    assert not [t for t in threading.enumerate() if t.name.startswith("vlmrl-judge")]
