"""scale.watchdog and scale.beacon: a rank that is lost is named and ends the job within seconds; one that lives is waited for."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import Ranks, total
from vlmrl.errors import ConfigError
from vlmrl.extras.scale import watchdog
from vlmrl.extras.scale.beacon import LIMIT, BeaconSettings, RankStatus, RankTable, Wire
from vlmrl.extras.scale.watchdog import seconds

pytestmark = pytest.mark.not_fast  # starts processes

HOST = socket.gethostname()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def start(work: str = "count", *, warn: float = 60.0, lost: float, patience: float = 600.0, **kw: Any) -> Ranks:
        waits = {watchdog.WARN_VARIABLE: warn, watchdog.LOST_VARIABLE: lost, watchdog.PATIENCE_VARIABLE: patience}
        made.append(Ranks(work, tmp_path, **waits, **kw))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_a_stopped_rank_is_named_and_goes_on_as_if_nothing_had_been(job: Callable[..., Ranks]) -> None:
    running = job(STEPS=100, warn=1.0, lost=600.0)
    running.wait_for(1, "READY")
    time.sleep(0.5)
    running.send(1, signal.SIGSTOP)
    line = running.wait_for(0, "has waited")
    assert re.search(rf"warning: rank 0 \(host .+, pid {running.pid(0)}\) has waited \d+ s in (gather|sum), step \d+", line)
    assert re.search(rf"for rank 1 \(host {re.escape(HOST)}, pid {running.pid(1)}\), which is stopped \(SIGSTOP\) since \d+ s", line)
    assert re.search(r"last seen at work: step \d+", line)
    running.wait_for(0, "has waited [2-9] s")  # again, after twice the time
    running.send(1, signal.SIGCONT)
    assert [running.code(rank) for rank in range(2)] == [0, 0]
    assert [running.text(rank).splitlines()[-1] for rank in range(2)] == [f"TOTAL {total(100)}"] * 2
    assert "has waited" not in running.text(1)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=lambda number: number.name)
def test_a_rank_that_is_stopped_or_killed_ends_the_job_with_its_name(job: Callable[..., Ranks], number: signal.Signals, lost: int) -> None:
    """Rank 0 is where the table is kept: it is no exception."""
    running = job(STEPS=20000, world=3, lost=2.0)
    running.wait_for(lost, "READY")
    running.send(lost, number)
    began = time.monotonic()
    others = [rank for rank in range(3) if rank != lost]
    assert [running.code(rank, timeout=15) for rank in others] == [70, 70]
    assert time.monotonic() - began < (8 if number == signal.SIGSTOP else 4)
    assert running.code(lost, timeout=10) == -signal.SIGKILL, "a stopped rank would keep its memory and the lock of the run"
    why = "its process has been stopped (SIGSTOP) for" if number == signal.SIGSTOP else "its process has ended without a word"
    for rank in others:
        line = running.wait_for(rank, "error: ")
        assert f"error: rank {lost} (host {HOST}, pid {running.pid(lost)}) is lost: {why}" in line
        assert re.search(r"last seen at work: (start|step \d+)", line)
        assert f"; rank {rank} (host {HOST}, pid {running.pid(rank)}) ends here, run the same command to go on" in line


def test_a_host_that_is_silent_ends_the_job(job: Callable[..., Ranks]) -> None:
    """Nothing runs there any more, as where a machine has no power or no network."""
    running = job(STEPS=20000, lost=2.0)
    running.wait_for(1, "READY")
    time.sleep(2)  # the beacon's first words may come after the ranks' first steps
    for pid in (running.beacon(1), running.pid(1)):
        os.kill(pid, signal.SIGSTOP)
    # a host that was never heard of, as on a machine that starts processes slowly, is given the time of a start
    assert running.code(0, timeout=90) == 70
    said = running.wait_for(0, "error: ")
    assert re.search(r"error: rank 1.* is lost: no sign of life (for \d+ s \(its host is down|in 60 s)", said)


@pytest.mark.slow
def test_a_rank_that_works_or_waits_for_a_judge_is_not_given_up(job: Callable[..., Ranks]) -> None:
    """Not while a C call keeps all of its threads from running, nor after the patience of the collectives."""
    running = job("slow", LONG=5, warn=1.0, lost=2.0, patience=2.0)
    assert [running.code(rank) for rank in range(2)] == [0, 0], running.text(0) + running.text(1)
    assert [running.text(rank).splitlines()[-1] for rank in range(2)] == ["DONE", "DONE"]
    assert "which is at work: " in running.wait_for(0, "has waited")
    assert "error" not in running.text(0) + running.text(1)


def test_ranks_that_wait_for_each_other_are_ended_when_patience_is(job: Callable[..., Ranks]) -> None:
    running = job("astray", lost=2.0, patience=2.0)
    assert [running.code(rank) for rank in range(2)] == [70, 70]
    line = running.wait_for(0, "error: ")
    assert "all ranks have waited for longer than 2 s, each for the others: rank 0 " in line
    assert re.search(r"in gather, start.*; rank 1 .+ in another one, start", line)


def test_a_rank_that_leaves_with_an_error_is_not_waited_for(job: Callable[..., Ranks]) -> None:
    running = job("leaves", lost=2.0)
    assert running.code(1) == 1
    assert "a defect" in running.text(1)
    assert running.code(0, timeout=20) == 70
    line = running.wait_for(0, "error: ")
    assert "it has left the job, and others wait for it; last seen at work: start; it ended with: a defect;" in line


def test_signs_of_life_go_on_when_their_process_is_killed(job: Callable[..., Ranks]) -> None:
    running = job(STEPS=400, lost=4.0)
    for rank in range(2):
        running.wait_for(rank, "READY")
        os.kill(running.beacon(rank), signal.SIGKILL)
        running.wait_for(rank, f"warning: the process that gives signs of life for rank {rank} has ended")
    assert [running.code(rank) for rank in range(2)] == [0, 0]
    assert [running.text(rank).splitlines()[-1] for rank in range(2)] == [f"TOTAL {total(400)}"] * 2


# ---- the table -----------------------------------------------------------------------------------------------------------


def table(**seen: dict[str, Any]) -> RankTable:
    """Three ranks that are at work in their second collective; `r1={...}` changes rank 1."""
    address = ("127.0.0.1", 1)
    settings = BeaconSettings(
        rank=0, world=3, pid=1, host="h0", address=address, token="t", parent=0, listener=0, beat=2, warn=60, lost=10, patience=600
    )
    base: dict[str, Any] = {"heard": 100.0, "known": True, "reached": 2}
    return RankTable(
        settings=settings, seen={n: RankStatus(**base | {"host": f"h{n}", "pid": n} | seen.get(f"r{n}", {})) for n in range(3)}
    )


def waits(reached: int = 2, waited: float = 5.0) -> dict[str, Any]:
    return {"reached": reached, "waiting": "gather", "waited": waited}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"heard": 91.0}, None),
        ({"heard": 90.0}, "rank 1 (host h1, pid 1) is lost: no sign of life for 10 s"),
        ({"state": "T", "stuck": 91.0}, None),
        ({"state": "T", "stuck": 90.0}, "is lost: its process has been stopped (SIGSTOP) for 10 s"),
        ({"state": "D", "stuck": 90.0}, None),
        ({"state": "D", "stuck": -500.0}, "its process has hung in the kernel for 600 s"),
        ({"known": False, "heard": 41.0}, None),
        ({"known": False, "heard": 40.0}, "rank 1, which has never been seen, is lost: no sign of life in 60 s"),
        ({"gone": "dead"}, "its process has ended without a word"),
        ({"gone": "left"}, None),
        ({"gone": "left", "reached": 1}, None),
    ],
)
def test_who_is_lost(changed: dict[str, Any], says: str | None) -> None:
    found = table(r1=changed).verdict(100.0)
    assert (found is None) == (says is None), found
    assert says is None or says in str(found)


def test_a_rank_that_has_left_is_missed_by_those_that_wait_for_it() -> None:
    assert table(r0=waits(waited=4.0), r1={"gone": "left", "reached": 1}).verdict(100.0) is None
    assert "rank 1 (host h1, pid 1) is lost: it has left the job" in str(
        table(r0=waits(waited=6.0), r1={"gone": "left", "reached": 1}).verdict(100.0)
    )
    assert table(r0=waits(waited=6.0), r1={"gone": "left"}).verdict(100.0) is None, "it had come to that collective"


def test_patience_is_for_collectives_to_which_all_have_come() -> None:
    long = waits(waited=700.0)
    assert table(r0=long, r2=long).verdict(100.0) is None, "rank 1 is at work, and may wait for a judge"
    assert table(r0=long, r1=waits(waited=599.0), r2=long).verdict(100.0) is None
    assert "all ranks have waited for longer than 600 s" in str(table(r0=long, r1=long, r2=long).verdict(100.0))
    assert "rank 0 (host h0, pid 0) has waited for a day" in str(table(r0=waits(waited=LIMIT)).verdict(100.0))


def test_who_is_cut_off_says_so() -> None:
    silent = {"heard": 80.0}
    assert "or h0, from where this was seen, is cut off" in str(table(r1=silent, r2=silent).verdict(100.0))
    assert "cut off" not in str(table(r1=silent).verdict(100.0))


def test_warnings_come_at_longer_and_longer_intervals_and_name_who_has_not_come() -> None:
    one = table(r0=waits(3, 59.0), r2=waits(3, 20.0), r1={"doing": "step 7"})
    said: list[float] = []
    for waited in range(50, 500, 10):
        one.seen[0].waited = float(waited)
        text = one.warning(100.0)
        if text is not None:
            said.append(waited)
            assert text.endswith("in gather, start, for rank 1 (host h1, pid 1), which is at work: step 7")
    assert said == [60, 120, 240, 480]
    one.seen[0].reached, one.seen[0].waited = 4, 60.0
    assert "for rank 1 (host h1, pid 1), which is at work: step 7; rank 2 " in str(one.warning(100.0)), "a new wait begins anew"


def test_many_missing_ranks_are_one_line() -> None:
    some = table()
    some.seen |= {n: RankStatus(heard=0.0, known=True) for n in range(3, 503)}
    assert "; and 492 more" in str(some.verdict(100.0))


def test_a_wire_takes_lines_of_ours_alone() -> None:
    for sent, heard, stays in (
        (b'{"a": 1}\n{"b": 2}\n{"c"', [{"a": 1}, {"b": 2}], True),
        (b"GET / HTTP/1.1\r\n\r\n", [], False),
        (b"[1]\n", [], False),
        (b"x" * 70000, [], False),
    ):
        ours, theirs = socket.socketpair()
        wire = Wire(ours)
        theirs.setblocking(False)
        theirs.send(sent)
        assert (list(wire.lines()), wire.open) == (heard, stays)
        wire.close()
        theirs.close()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_seconds_that_are_none_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(watchdog.WARN_VARIABLE, text)
    with pytest.raises(ConfigError, match="VLMRL_RANK_WARN_SECONDS"):
        seconds(watchdog.WARN_VARIABLE, 60.0)
    monkeypatch.setenv(watchdog.WARN_VARIABLE, "")
    assert seconds(watchdog.WARN_VARIABLE, 60.0) == 60.0


def test_the_patience_of_a_run_and_what_the_environment_says_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (watchdog.WARN_VARIABLE, watchdog.LOST_VARIABLE, watchdog.PATIENCE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    assert watchdog.waits() == watchdog.Waits(warn=60.0, lost=10.0, patience=600.0)
    assert watchdog.waits(1200.0).patience == 1200.0
    monkeypatch.setenv(watchdog.PATIENCE_VARIABLE, "30")
    assert watchdog.waits(1200.0).patience == 30.0
