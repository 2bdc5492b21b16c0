"""Runs commands, several at a time: what is done stays, what was killed goes on, and one that fails stops no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vlmrl import fs
from vlmrl.errors import Preempted, RunBusyError, StorageError
from vlmrl.extras.study.plan import RUN, Run

PROGRAM = (sys.executable, "-m", "vlmrl")
COSTS = "costs.jsonl"
"""File of the seconds that each run took."""
_POLL = 0.1
_AGAIN = 10.0
"""Seconds until a run that somebody else has in hand is looked at again."""
_STOPPING = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Failure:
    """A run that ended with an error."""

    run: Run
    code: int

    def __str__(self) -> str:
        return f"{self.run.name} ended with exit code {self.code}; all that it said is in {self.run.log}"


@dataclass
class _Child:
    run: Run
    process: subprocess.Popen[bytes]
    began: float
    goes_on: bool


def with_needs(runs: Sequence[Run]) -> list[Run]:
    """Put before the runs those that they begin from, each behind what it needs and none twice."""
    out: dict[Path, Run] = {}
    for run in runs:
        for one in (*(inner for before in run.after for inner in (*before.after, before)), run):
            out.setdefault(one.mark, one)
    return list(out.values())


def share(runs: Sequence[Run], index: int, count: int) -> list[Run]:
    """Take the share of one task of an array: units in turn."""
    return [run for unit in units_of(runs)[index::count] for run in unit]


def units_of(runs: Sequence[Run]) -> list[list[Run]]:
    """Part runs into what tasks may do beside each other: runs that begin from one run stay together, so that no two tasks train it."""
    units: dict[object, list[Run]] = {}
    for run in runs:
        starts = tuple(before.mark for before in run.after if before.kind == "start")
        units.setdefault(starts or run.mark, []).append(run)
    return list(units.values())


def run_all(
    runs: Sequence[Run], out: Path, say: Callable[[str], None], *, jobs: int = 1, program: Sequence[str] = PROGRAM
) -> list[Failure]:
    """Run what is not done, `jobs` at a time, each behind what it needs.

    Returns:
        Those that failed. What needs one of them was not begun.

    Raises:
        Preempted: a signal asked this process to stop; the runs have saved and ended.
    """
    waiting = [run for run in with_needs(runs) if not run.done]
    total, begun, later = len(waiting), 0, dict[Path, float]()
    children: list[_Child] = []
    failed: list[Failure] = []
    with _handing_on(children) as asked:
        while children or (waiting and not asked):
            lost = {failure.run.mark for failure in failed}
            waiting = [run for run in waiting if not run.done and not any(before.mark in lost for before in run.after)]
            ready = [run for run in waiting if all(before.done for before in run.after) and later.get(run.mark, 0) <= time.monotonic()]
            for run in ready[: max(0, jobs - len(children))] if not asked else []:
                begun += run.mark not in later
                say(f"[{begun}/{total}] {run.name}{' (goes on)' if run.log.exists() else ''}")
                waiting.remove(run)
                children.append(_started(run, program))
            for child in [child for child in children if (code := _code(child, out)) is not None]:
                children.remove(child)
                code = child.process.returncode
                if code == RunBusyError.exit_code:  # another process of this study, or one that outlived it
                    if child.run.mark not in later:
                        say(f"{child.run.name} is in use by another process; looking again every {_AGAIN:.0f} s")
                    later[child.run.mark] = time.monotonic() + _AGAIN
                    waiting.append(child.run)
                elif code and not (asked and code == Preempted.exit_code):
                    failed.append(Failure(child.run, code))
                    say(f"failed: {failed[-1]}")
                    for line in last_lines(child.run.log):
                        say(f"  {line}")
            time.sleep(_POLL)
    if asked:
        raise Preempted(f"stopped; the same command goes on ({sum(run.done for run in with_needs(runs))} runs are done)")
    return failed


def _started(run: Run, program: Sequence[str]) -> _Child:
    fs.mkdir(run.log.parent)
    goes_on = run.log.exists()
    # what a child prints is no durable write of ours
    log = os.open(run.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        environment = os.environ | {RUN: str(run.folder.absolute())}
        process = subprocess.Popen([*program, *run.words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    finally:
        os.close(log)
    return _Child(run, process, time.monotonic(), goes_on)


def _code(child: _Child, out: Path) -> int | None:
    """The exit code of a child that has ended, with what it took written down."""
    ended, status, used = os.wait4(child.process.pid, os.WNOHANG)
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    run = child.run
    if code == 0 and run.kind == "prepare":
        fs.mkdir(run.mark.parent)
        fs.write_text(run.mark, "")
    if code == 0 and not run.done:
        code = StorageError.exit_code  # it says that it is finished, and nothing says so
    child.process.returncode = code if code >= 0 else 128 - code
    if code == 0 and not child.goes_on:  # of a run in several parts this is only the last
        took = {"run": run.name, "kind": run.kind, "cpu": round(used.ru_utime + used.ru_stime, 2)}
        fs.append(out / COSTS, json.dumps(took | {"wall": round(time.monotonic() - child.began, 2)}).encode() + b"\n")
    return child.process.returncode


def last_lines(log: Path, count: int = 8) -> list[str]:
    """Read the end of a log."""
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:] if log.exists() else []


@contextmanager
def _handing_on(children: list[_Child]) -> Iterator[list[int]]:
    """Make a block in which a signal to stop is handed to the children, who save and end. Gives the list of signals that came."""
    asked: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        # Ctrl-C reaches the whole group of the terminal; a second one would end the runs before they have saved
        asked.append(number)
        for child in children:
            if number != signal.SIGINT or not sys.stdin.isatty():
                child.process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in _STOPPING}
    try:
        yield asked
    finally:
        for child in children:  # only where an error ends this process
            child.process.terminate()
        for number, handler in before.items():
            signal.signal(number, handler)
