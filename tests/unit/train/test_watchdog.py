"""train.watchdog: a rank that hangs is named while the others wait, and given up in the end; nobody else is."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from vlmrl.errors import ConfigError
from vlmrl.train import watchdog
from vlmrl.train.watchdog import Watchdog, seconds

WORK = """
import sys, time
import torch
torch.set_num_threads(1)
from vlmrl.train import dist
dist.start()
total = 0
for step in range(int(sys.argv[1])):
    dist.doing(f"step {step}")
    total = total * 3 % 1000003 + sum(dist.gather(step * 7 + dist.rank())) + int(dist.sum_(torch.tensor([step])))
    if step == 3:
        print("READY", flush=True)
    time.sleep(0.02)
print("TOTAL", total, flush=True)
dist.stop()
"""


class Job:
    """Two ranks over gloo, each a process of this test; rank 0 holds the store."""

    def __init__(self, folder: Path, steps: int, warn: float, lost: float):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        script = folder / "work.py"
        script.write_text(WORK)
        given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
        given |= {watchdog.WARN_VARIABLE: str(warn), watchdog.LOST_VARIABLE: str(lost)}
        self.ranks: list[subprocess.Popen[str]] = []
        self.logs = [folder / f"rank{rank}.log" for rank in range(2)]
        for rank in range(2):
            with self.logs[rank].open("w") as log:
                env = os.environ | given | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                command = [sys.executable, str(script), str(steps)]
                self.ranks.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, text=True))

    def wait_for(self, rank: int, pattern: str, timeout: float = 90) -> str:
        """The first line of a rank's output in which the pattern is found."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            found = [line for line in self.logs[rank].read_text().splitlines() if re.search(pattern, line)]
            if found:
                return found[0]
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in: {self.logs[rank].read_text()[-3000:]}")

    def close(self) -> None:
        for process in self.ranks:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def start(**kw: Any) -> Job:
        made.append(Job(tmp_path, **kw))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_a_stopped_rank_is_named_and_goes_on_as_if_nothing_had_been(job: Callable[..., Job]) -> None:
    running = job(steps=60, warn=1.0, lost=600.0)
    running.wait_for(1, "READY")
    stopped = running.ranks[1]
    stopped.send_signal(signal.SIGSTOP)
    line = running.wait_for(0, "has waited")
    assert re.search(rf"warning: rank 0 \(host .+, pid {running.ranks[0].pid}\) has waited \d+ s in (gather|sum), step \d+", line)
    assert re.search(
        rf"for rank 1 \(host {re.escape(socket.gethostname())}, pid {stopped.pid}\), which has given no sign of life since", line
    )
    assert re.search(r"last seen at work: (start|step \d+)", line)
    running.wait_for(0, "has waited [2-9] s")  # again, after twice the time
    stopped.send_signal(signal.SIGCONT)
    assert [process.wait(timeout=60) for process in running.ranks] == [0, 0]
    expected = 0
    for step in range(60):
        expected = expected * 3 % 1000003 + 14 * step + 1 + 2 * step
    assert [log.read_text().splitlines()[-1] for log in running.logs] == [f"TOTAL {expected}"] * 2
    assert "has waited" not in running.logs[1].read_text()


@pytest.mark.parametrize("hangs", [0, 1])
def test_a_rank_without_a_sign_of_life_is_given_up_with_the_promised_code(job: Callable[..., Job], hangs: int) -> None:
    """Rank 0 holds the store: where it hangs, the other one hears of nobody, and says so."""
    running = job(steps=2000, warn=0.5, lost=2.5)
    running.wait_for(hangs, "READY")
    running.ranks[hangs].send_signal(signal.SIGSTOP)
    assert running.ranks[1 - hangs].wait(timeout=60) == 70
    line = running.wait_for(1 - hangs, "error: ")
    assert re.search(rf"error: rank {1 - hangs} .+ has waited \d+ s in (gather|sum), .+ rank {hangs}\b", line), line
    assert "no sign of life for longer than 2 s (VLMRL_RANK_LOST_SECONDS says how long); the job ends here, run the same command" in line
    assert f"rank {hangs} (host {socket.gethostname()}, pid {running.ranks[hangs].pid})" in line
    if hangs == 0:
        assert "has not answered for" in running.wait_for(1, "warning: ")


def pair(said: list[str], ended: list[int], *, lost: float, patience: float) -> tuple[Watchdog, Watchdog]:
    store = HashStore()
    kw: dict[str, Any] = {"world": 2, "warn": 0.2, "lost": lost, "patience": patience, "end": ended.append}
    return Watchdog(store, rank=0, say=said.append, **kw), Watchdog(store, rank=1, say=said.append, **kw)


def until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_rank_at_work_is_said_to_be_and_is_not_given_up_before_patience_ends() -> None:
    said: list[str] = []
    ended: list[int] = []
    first, second = pair(said, ended, lost=0.5, patience=3.0)
    second.doing = "asking a judge"
    try:
        with first.collective("gather"):
            until(lambda: len(said) >= 2)
            assert re.search(r"rank 1 \(host .+\), which is at work: asking a judge", said[0])
            began = time.monotonic()
            while time.monotonic() - began < 0.5:  # longer than a silent rank would get
                assert ended == []
                time.sleep(0.02)
            until(lambda: ended)
        assert ended[0] == 70
        assert any("waited for longer than 3 s" in line for line in said)
    finally:
        first.close()
        second.close()


def test_nobody_is_named_while_all_come() -> None:
    said: list[str] = []
    first, second = pair(said, [], lost=5.0, patience=5.0)
    meet = threading.Barrier(2)

    def work(dog: Watchdog) -> None:
        for _ in range(20):
            with dog.collective("gather"):
                meet.wait(timeout=30)
                time.sleep(0.04)

    other = threading.Thread(target=work, args=(second,))
    other.start()
    work(first)
    other.join()
    first.close()
    second.close()
    assert said == []


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_seconds_that_are_none_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(watchdog.WARN_VARIABLE, text)
    with pytest.raises(ConfigError, match="VLMRL_RANK_WARN_SECONDS"):
        seconds(watchdog.WARN_VARIABLE, 60.0)
    monkeypatch.setenv(watchdog.WARN_VARIABLE, "")
    assert seconds(watchdog.WARN_VARIABLE, 60.0) == 60.0
