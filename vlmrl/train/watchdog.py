"""Watches the ranks of a run: who keeps the others waiting, where that rank was last seen, and when to give it up.

A collective returns when all ranks have come to it. If one hangs (a stopped process, a dead disk, a frozen host), the others wait without
a word for as long as the process group allows, which is a day, because a rank may rightly wait for a judge that long. So every rank
publishes a sign of life: a number that grows, the number of the collective that it has reached, and the line of our code at which its main
thread is. A rank that waits for long reads what the others have published and says whom it waits for. A rank that is alive is waited for
until `dist.PATIENCE`; one without any sign of life is given up after `LOST_SECONDS`, and the job ends with exit code 70. What was saved
stays, and the same command resumes.

Nothing here runs in a run of one process. The signs of life go through the store with which the process group was opened, on a
connection of their own; if the store itself does not answer, that is said as well.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError, VlmrlError

WARN_VARIABLE, WARN_SECONDS = "VLMRL_RANK_WARN_SECONDS", 60.0
"""How long a rank waits for another before it says so; then again after twice the time, and so on."""
LOST_VARIABLE, LOST_SECONDS = "VLMRL_RANK_LOST_SECONDS", 1800.0
"""How long a rank may be waited for that gives no sign of life."""
_PACKAGE = str(Path(__file__).parents[1])
_NOT_A_PLACE = {str(Path(__file__)), str(Path(__file__).with_name("dist.py"))}
_BEATS_PER_WARNING = 8


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A rank's sign of life, as it was published."""

    beat: int
    """Grows with every sign."""
    reached: int
    """How many collectives the rank has come to."""
    place: str
    """Line of our code, and what the run was doing."""
    host: str
    pid: int
    wall: float
    """The rank's clock, for people."""


@dataclass(kw_only=True)
class _Seen:
    """The latest sign of a rank, and when (our monotonic clock) it was new."""

    sign: Sign | None
    since: float


class Watchdog:
    """Two threads beside the main thread of a rank: one talks to the store, the other judges. `doing` says what the run is at."""

    def __init__(
        self,
        store: Any,
        *,
        rank: int,
        world: int,
        warn: float,
        lost: float,
        patience: float,
        say: Callable[[str], None] | None = None,
        end: Callable[[int], None] = os._exit,
    ):
        """
        Args:
            store: a `torch.distributed.Store` that no other thread uses.
            warn, lost, patience: seconds of waiting until it is said, until a silent rank is given up, and until any is.
            say: gets each message; by default standard error.
            end: ends the process with an exit code; the main thread is in a collective and cannot.
        """
        self._store, self._rank, self._world = store, rank, world
        self._warn, self._lost, self._patience = warn, lost, patience
        self._say, self._end = say or _to_stderr, end
        self._pause = warn / _BEATS_PER_WARNING
        self._main = threading.main_thread().ident
        self._stopped = threading.Event()
        self._reached = 0
        self._waiting: tuple[str, float] | None = None
        now = time.monotonic()
        self._seen = {other: _Seen(sign=None, since=now) for other in range(world) if other != rank}
        self._answered = self._awake = now
        self.doing = "start"
        self._threads = [threading.Thread(target=work, name=f"watchdog-{work.__name__}", daemon=True) for work in (self._talk, self._judge)]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def collective(self, name: str) -> Iterator[None]:
        """A block in which this rank waits for the others. All ranks come to the same blocks in the same order."""
        self._reached += 1
        self._waiting = (name, time.monotonic())
        try:
            yield
        finally:
            self._waiting = None

    def close(self) -> None:
        """End both threads; one that hangs in the store ends with the process."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _talk(self) -> None:
        """Publish signs of life, and read those of the others: while this rank waits at once, else now and then."""
        beat = 0
        try:
            while not self._stopped.wait(self._pause if beat else 0.0):
                beat += 1
                sign = {"beat": beat, "reached": self._reached, "place": self._place(), "host": socket.gethostname(), "pid": os.getpid()}
                self._store.set(_key(self._rank), json.dumps(sign | {"wall": time.time()}))
                if self._waiting is not None or beat % _BEATS_PER_WARNING == 0 or any(seen.sign is None for seen in self._seen.values()):
                    self._read()
                self._answered = time.monotonic()
        except RuntimeError as error:  # the store has gone with the process that held it; the collective fails or the judge ends it
            if not self._stopped.is_set():
                self._say(f"rank {self._rank}: the ranks cannot be watched any more: {str(error).splitlines()[0]}")

    def _read(self) -> None:
        for other, seen in self._seen.items():
            if self._store.check([_key(other)]):
                sign = Sign(**json.loads(self._store.get(_key(other))))
                if seen.sign is None or sign.beat != seen.sign.beat:
                    self._seen[other] = _Seen(sign=sign, since=time.monotonic())

    def _judge(self) -> None:
        """Say whom this rank waits for, at longer and longer intervals, and end the process when it is time."""
        said_of, due = 0, self._warn
        looked = time.monotonic()
        while not self._stopped.wait(self._pause):
            before, looked = looked, time.monotonic()
            if looked - before > self._warn / 2:
                self._awake = looked
            waiting, reached = self._waiting, self._reached
            if waiting is None:
                continue
            if said_of != reached:
                said_of, due = reached, self._warn
            name, since = waiting
            waited = self._since(since)
            missing = {other: seen for other, seen in self._seen.items() if seen.sign is None or seen.sign.reached < reached}
            if waited >= due:
                due = 2 * due
                self._report(name, waited, missing)
            self._give_up(name, waited, missing)

    def _report(self, name: str, waited: float, missing: dict[int, _Seen]) -> None:
        mute = self._since(self._answered)
        whom = "; ".join(self._describe(other, seen, waited) for other, seen in sorted(missing.items()))
        if mute > self._warn / 2:
            held = f"the store of the process group ({_holder()}) has not answered for {mute:.0f} s, so who holds it hangs"
            self._say(f"warning: {self._head(name, waited)} others; {held}; last known: {whom or 'all ranks had come'}")
        elif missing and self._speaks(missing):
            self._say(f"warning: {self._head(name, waited)} {whom}")

    def _give_up(self, name: str, waited: float, missing: dict[int, _Seen]) -> None:
        if waited < min(self._lost, self._patience):
            return
        dead = {other: seen for other, seen in missing.items() if self._since(seen.since) >= self._lost}
        mute = self._since(self._answered) >= self._lost
        if waited >= self._patience:
            why = f"waited for longer than {self._patience:.0f} s"
        elif dead or mute:
            why = f"no sign of life for longer than {self._lost:.0f} s ({LOST_VARIABLE} says how long)"
        else:
            return
        whom = "; ".join(self._describe(other, seen, waited) for other, seen in sorted((dead or missing).items()))
        lost = RankLost(f"{self._head(name, waited)} {whom or _holder()}: {why}; the job ends here, run the same command to go on")
        self._say(f"error: {lost}")
        self._end(lost.exit_code)

    def _speaks(self, missing: dict[int, _Seen]) -> bool:
        """The first rank that waits and lives speaks for all that wait."""
        waiting = [other for other, seen in self._seen.items() if other not in missing and self._since(seen.since) < self._warn]
        return self._rank < min(waiting, default=self._world)

    def _head(self, name: str, waited: float) -> str:
        return (
            f"rank {self._rank} (host {socket.gethostname()}, pid {os.getpid()}) has waited {waited:.0f} s in {name}, {self._place()}, for"
        )

    def _describe(self, other: int, seen: _Seen, waited: float) -> str:
        if seen.sign is None:
            return f"rank {other}, which has never been seen"
        sign, silent = seen.sign, self._since(seen.since)
        who = f"rank {other} (host {sign.host}, pid {sign.pid})"
        if silent < self._warn / 2:
            return f"{who}, which is at work: {sign.place}"
        clock = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(sign.wall))
        return (
            f"{who}, which has given no sign of life since {clock} ({min(silent, waited):.0f} s or more); last seen at work: {sign.place}"
        )

    def _since(self, moment: float) -> float:
        """Seconds since a moment, in which this process ran: one that was stopped itself does not blame the others."""
        return time.monotonic() - max(moment, self._awake)

    def _place(self) -> str:
        """What the run is doing, and the innermost line of our code in the main thread."""
        frame = sys._current_frames().get(self._main or -1)
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith(_PACKAGE) and path not in _NOT_A_PLACE:
                return f"{self.doing}, {os.path.relpath(path, os.path.dirname(_PACKAGE))}:{frame.f_lineno} in {frame.f_code.co_name}"
            frame = frame.f_back
        return self.doing


class RankLost(VlmrlError):
    """Another rank does not come to a collective any more."""

    exit_code = 70


def seconds(variable: str, default: float) -> float:
    """A number of seconds from the environment.

    Raises:
        ConfigError: it is no positive number.
    """
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"{variable}: {text!r} is not a positive number of seconds")
    return value


def _key(rank: int) -> str:
    return f"vlmrl/sign-of-life/{rank}"


def _holder() -> str:
    """Who keeps the store: the launcher where it offers one, else rank 0."""
    who = "the launcher" if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "rank 0"
    return f"{who} at {os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"\n{text}\n")
    sys.stderr.flush()
