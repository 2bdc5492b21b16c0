"""Gives signs of life for a rank from a process of its own, and on rank 0 judges those of all. Standard library only.

One such process runs beside each rank, started by `scale.watchdog` as a file, so it is there within milliseconds, and nothing that the
rank does keeps it from beating: no C call that holds the interpreter's lock, no read from a dead disk. Every two seconds it tells the one
of rank 0 (over TCP) that its rank's process lives, in which state the kernel says it is, and what it was last doing. Rank 0's keeps the
table, says whom the others wait for, and decides who is lost; the others decide only about rank 0.

A rank is lost when its process has ended without a word, has been stopped (SIGSTOP) for too long, or when nothing at all comes from its
host. Then everyone is told who it was, the ranks end with exit code 70, and one that does not end by itself is killed.

Ages are counted on a clock that stands still while this process itself does not run: whoever was stopped or starved blames nobody for it.
"""

from __future__ import annotations

import hmac
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

STARTING = 60.0
"""Seconds that a rank may take until its first sign of life."""
LEFT = 5.0
"""Seconds that a rank waits in a collective for one that has left the job."""
TAKES = 2.0
"""Seconds that a rank has to end by itself."""
LIMIT = 86400.0
"""Seconds that a rank at work is waited for: a day."""
_LINE = 1 << 16
_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class BeaconSettings:
    """What a beacon is started with, as JSON on its command line."""

    rank: int
    world: int
    pid: int
    host: str
    address: tuple[str, int]
    """Where rank 0's beacon listens."""
    token: str
    """Who does not know it is not listened to."""
    parent: int
    """Descriptor of the socket to the rank's process."""
    listener: int
    """Descriptor of the listening socket; -1 but on rank 0."""
    beat: float
    """Seconds between two signs of life."""
    warn: float
    """How long a rank waits for another before it is said; then again after twice the time, and so on."""
    lost: float
    """How long nothing may come from a rank, or its process be stopped."""
    patience: float
    """How long a collective may take to which all ranks have come."""


class Wire:
    """Lines of JSON over a socket that is never waited for."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.open = True
        self._read = b""
        sock.setblocking(False)

    def send(self, message: Json) -> None:
        """Send a line; the wire is closed where that is not possible at once."""
        if self.open:
            try:
                line = json.dumps(message).encode() + b"\n"
                if self.sock.send(line) < len(line):
                    self.close()
            except OSError:
                self.close()

    def lines(self) -> Iterator[Json]:
        """What has come; the wire is closed at its end, and by what is no line of ours."""
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
        *whole, self._read = (self._read + data).split(b"\n")
        for line in whole:
            try:
                yield dict(json.loads(line))
            except (ValueError, TypeError):
                self.close()
                return
        if len(self._read) > _LINE:
            self.close()

    def close(self) -> None:
        if self.open:
            self.open = False
            self.sock.close()


@dataclass(kw_only=True)
class RankStatus:
    """What is known of a rank."""

    heard: float
    """When (this process's clock) the latest sign came."""
    host: str = "?"
    pid: int = 0
    known: bool = False
    gone: str = ""
    """`left`: said goodbye; `dead`: ended without a word."""
    state: str = "S"
    """As in /proc/PID/stat."""
    stuck: float = 0.0
    """Since when the process is stopped, or asleep in the kernel and not to be woken."""
    reached: int = 0
    """How many collectives the rank has come to."""
    waiting: str = ""
    """The collective in which it waits."""
    waited: float = 0.0
    doing: str = "start"

    def take(self, sign: Json, now: float) -> None:
        """A sign of life has come."""
        self.heard, self.known = now, True
        self.host, self.pid = str(sign["host"]), int(sign["pid"])
        state = str(sign["state"])
        if state != self.state or state not in "TD":
            self.state, self.stuck = state, now
        status = sign["status"]
        self.reached, self.waiting, self.waited = int(status["reached"]), str(status["waiting"]), float(status["waited"])
        self.doing = str(status["doing"])
        self.gone = str(sign["gone"])


@dataclass(kw_only=True)
class RankTable:
    """All ranks as rank 0's beacon knows them, and what follows from it."""

    settings: BeaconSettings
    seen: dict[int, RankStatus]
    due: float = field(init=False)
    said_of: tuple[int, int] = (-1, -1)

    def __post_init__(self) -> None:
        self.due = self.settings.warn

    def verdict(self, now: float) -> str | None:
        """Why the job ends, if it does."""
        lost = {rank: why for rank, seen in self.seen.items() if (why := self._lost(seen, now)) is not None}
        if lost:
            whom = [f"{self.name(rank)} is lost: {why}; last seen at work: {self.seen[rank].doing}" for rank, why in sorted(lost.items())]
            all_others = len(lost) == len(self.seen) - 1 and len(lost) > 1
            return _some(whom) + (f"; or {self.settings.host}, from where this was seen, is cut off" if all_others else "")
        waited = min(seen.waited if seen.waiting else 0.0 for seen in self.seen.values())
        if waited >= self.settings.patience:
            where = [f"{self.name(rank)} in {seen.waiting}, {seen.doing}" for rank, seen in sorted(self.seen.items())]
            return f"all ranks have waited for longer than {self.settings.patience:.0f} s, each for the others: {_some(where)}"
        for rank, seen in self.seen.items():
            if seen.waiting and seen.waited >= LIMIT:
                return f"{self.name(rank)} has waited for a day, {_some(self._missing(seen, now))}"
        return None

    def warning(self, now: float) -> str | None:
        """Whom the others wait for, at longer and longer intervals."""
        waiting = {rank: seen for rank, seen in self.seen.items() if seen.waiting and not seen.gone}
        if not waiting:
            return None
        first = max(waiting, key=lambda rank: (waiting[rank].waited, -rank))
        seen = waiting[first]
        if self.said_of != (first, seen.reached):
            self.said_of, self.due = (first, seen.reached), self.settings.warn
        missing = self._missing(seen, now)
        if seen.waited < self.due or not missing:
            return None
        self.due *= 2
        return f"{self.name(first)} has waited {seen.waited:.0f} s in {seen.waiting}, {seen.doing}, for {_some(missing)}"

    def name(self, rank: int) -> str:
        seen = self.seen[rank]
        return f"rank {rank} (host {seen.host}, pid {seen.pid})" if seen.known else f"rank {rank}, which has never been seen,"

    def _missing(self, by: RankStatus, now: float) -> list[str]:
        """The ranks that have not come to where a rank waits, or do not run any more, each with what is known of it."""
        missing = {rank: seen for rank, seen in sorted(self.seen.items()) if seen.reached < by.reached or not self._runs(seen, now)}
        return [f"{self.name(rank)}, {self._how(seen, now)}" for rank, seen in missing.items() if seen is not by]

    def _runs(self, seen: RankStatus, now: float) -> bool:
        return not seen.gone and seen.state != "T" and now - seen.heard <= 4 * self.settings.beat

    def _how(self, seen: RankStatus, now: float) -> str:
        if seen.gone:
            return f"which has left; last seen at work: {seen.doing}"
        if now - seen.heard > 4 * self.settings.beat:
            return f"which has given no sign of life for {now - seen.heard:.0f} s; last seen at work: {seen.doing}"
        if seen.state == "T":
            return f"which is stopped (SIGSTOP) since {now - seen.stuck:.0f} s; last seen at work: {seen.doing}"
        return f"which is at work: {seen.doing}"

    def _lost(self, seen: RankStatus, now: float) -> str | None:
        """Why a rank is lost; None where it is not."""
        s = self.settings
        if seen.gone == "dead":
            return "its process has ended without a word (killed, out of memory, or a crash)"
        if seen.gone:
            waiting = any(other.waiting and other.waited > LEFT and other.reached > seen.reached for other in self.seen.values())
            return "it has left the job, and others wait for it" if waiting else None
        if not seen.known:
            return f"no sign of life in {STARTING:.0f} s" if now - seen.heard >= max(STARTING, s.lost) else None
        if now - seen.heard >= s.lost:
            return f"no sign of life for {now - seen.heard:.0f} s (its host is down, or its network)"
        if seen.state == "T" and now - seen.stuck >= s.lost:
            return f"its process has been stopped (SIGSTOP) for {now - seen.stuck:.0f} s"
        if seen.state == "D" and now - seen.stuck >= s.patience:
            return f"its process has hung in the kernel for {now - seen.stuck:.0f} s (a disk or a driver does not answer)"
        return None


class Beacon:
    """The process beside a rank. `turn` is one round of its loop."""

    def __init__(self, settings: BeaconSettings):
        self.s = settings
        self.tick = min(0.5, settings.beat / 4)
        self.clock, self._before = 0.0, time.monotonic()
        self.own = RankStatus(heard=0.0, known=True, host=settings.host, pid=settings.pid)
        self.status: Json = {"reached": 0, "waiting": "", "waited": 0.0, "doing": "start"}
        self.told = 0.0
        """When the rank's process last said what it is doing."""
        self.gone = ""
        self.why = ""
        """Why the job ends."""
        self.ending = 0.0
        """Since when."""
        self.told_to: set[int] = set()
        """Ranks that have been told by rank 0's beacon."""
        self.parent = Wire(socket.socket(fileno=settings.parent))
        self.listener = None if settings.listener < 0 else socket.socket(fileno=settings.listener)
        if self.listener is not None:
            self.listener.setblocking(False)
        self.clients: dict[Wire, int] = {}
        """Beacons of the other ranks, on rank 0's; -1 until they have said who they are."""
        self.first: Wire | None = None
        """Wire to rank 0's beacon, on the others."""
        self.places: list[Any] = []
        self.heard = 0.0
        self.first_left = False
        self.first_is, self.first_does = f"rank 0 (at {settings.address[0]})", "start"
        self.due = 0.0
        self.table = RankTable(settings=settings, seen={rank: RankStatus(heard=0.0) for rank in range(settings.world)})
        self.table.seen[settings.rank] = self.own

    def run(self) -> None:
        """Until the rank's process has gone."""
        while self.turn():
            pass
        for wire in self.clients if self.gone == "left" else ():
            wire.send({"left": True})

    def turn(self) -> bool:
        """Read what has come, beat if it is time, judge. False: there is nothing left to watch."""
        self._wait()
        self._hear_parent()
        if self.s.rank == 0:
            self._accept()
            self._hear_clients()
        else:
            self._hear_first()
        self._look()
        if self.clock >= self.due or self.gone:  # the last word is not put off
            self.due = self.clock + self.s.beat
            self._beat()
        self._judge()
        return not self.gone or self._untold()

    def _untold(self) -> bool:
        """Whether somebody has yet to hear that this rank has gone; it is tried for a while, since the others may just be starting."""
        if self.s.rank == 0:
            return bool(self.why) and self.clock - self.ending < self.s.lost and len(self.told_to) < self.s.world - 1
        told = self.first_left or (self.first is not None and self.first.open)
        return not told and not self.why and self.clock - self.heard < self.s.lost

    def _wait(self) -> None:
        with selectors.DefaultSelector() as selector:
            wires = [wire for wire in (self.parent, self.first, *self.clients) if wire is not None and wire.open]
            for sock in (self.listener, *(wire.sock for wire in wires)):
                if sock is not None:
                    selector.register(sock, selectors.EVENT_READ)
            selector.select(self.tick)
        now = time.monotonic()
        self.clock += min(now - self._before, self.s.beat + self.tick)
        self._before = now

    def _hear_parent(self) -> None:
        for line in self.parent.lines() if self.parent.open else ():
            if line.get("left"):
                self.gone = "left"
            else:
                self.status, self.told = line, self.clock
        if not self.gone and os.getppid() != self.s.pid:
            self.gone = "dead"

    def _look(self) -> None:
        """What the kernel says of the rank's process; where it says nothing, that process has to speak for itself."""
        try:
            with open(f"/proc/{self.s.pid}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0].decode()
        except (OSError, IndexError):
            state = "T" if self.clock - self.told > self.s.lost else "S"
        self.sign: Json = {"host": self.s.host, "pid": self.s.pid, "state": state, "status": self.status, "gone": self.gone}
        self.own.take(self.sign, self.clock)

    def _beat(self) -> None:
        if self.s.rank == 0:
            for wire in self.clients:
                wire.send({"alive": self.table.name(0), "doing": self.own.doing})
        elif not self.first_left:
            if self.first is None or not self.first.open:
                self._connect()
            if self.first is not None:
                self.first.send(self.sign)

    def _connect(self) -> None:
        """To rank 0's beacon. Its name is looked up once: a look-up may take long when the network is down."""
        try:
            self.places = self.places or socket.getaddrinfo(*self.s.address, type=socket.SOCK_STREAM)
        except OSError:
            return
        for family, kind, protocol, _, place in self.places:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(min(1.0, self.s.beat))
                sock.connect(place)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:
                sock.close()
                continue
            if self.first is None:
                self.heard = self.clock  # from now on; a later connection proves nothing, the kernel alone makes it
            self.first = Wire(sock)
            self.first.send({"token": self.s.token, "rank": self.s.rank})
            return

    def _accept(self) -> None:
        assert self.listener is not None
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.clients[Wire(sock)] = -1

    def _hear_clients(self) -> None:
        for wire in list(self.clients):
            for line in wire.lines() if wire.open else ():
                rank = self.clients[wire]
                if rank < 0:
                    rank = line.get("rank", -1)
                    if not hmac.compare_digest(str(line.get("token")), self.s.token) or rank not in self.table.seen:
                        wire.close()
                        break
                    self.clients[wire] = rank
                    self._tell(wire)
                else:
                    self.table.seen[rank].take(line, self.clock)
            if not wire.open:
                del self.clients[wire]

    def _tell(self, wire: Wire) -> None:
        """Another beacon hears why the job ends, if it does."""
        if self.why and self.clients[wire] >= 0:
            wire.send({"lost": self.why})
            self.told_to.add(self.clients[wire])

    def _hear_first(self) -> None:
        for line in self.first.lines() if self.first is not None and self.first.open else ():
            self.heard = self.clock
            if "lost" in line:
                self._end(str(line["lost"]))
            elif "left" in line:
                self.first_left = True
            else:
                self.first_is, self.first_does = str(line["alive"]), str(line["doing"])

    def _judge(self) -> None:
        if self.why:
            if self.clock - self.ending > TAKES and not self.gone:
                os.kill(self.s.pid, signal.SIGKILL)  # it hangs where no thread of its own gets a turn, or is stopped
            return
        if self.s.rank == 0:
            why = self.table.verdict(self.clock)
            if why is not None:
                self._end(why)
                for wire in self.clients:
                    self._tell(wire)
            elif (text := self.table.warning(self.clock)) is not None:
                say(f"warning: {text}")
        elif self.first_left:
            if self.own.waiting and self.own.waited > LEFT:
                self._end(f"{self.first_is}: it has left the job, and others wait for it")
        elif self.clock - self.heard >= (self.s.lost if self.first is not None else max(STARTING, self.s.lost)):
            silent = f"no sign of life for {self.clock - self.heard:.0f} s (its host is down, or the network, or this host is cut off)"
            self._end(f"{self.first_is} is lost: {silent}; last seen at work: {self.first_does}")

    def _end(self, why: str) -> None:
        """The job is over: say why, once, and have this rank's process end."""
        if not self.why:
            self.why, self.ending = why, self.clock
            if self.gone != "left":
                me = f"rank {self.s.rank} (host {self.s.host}, pid {self.s.pid})"
                say(f"error: {why}; {me} ends here, run the same command to go on")
                self.parent.send({"lost": why})


def _some(items: list[str]) -> str:
    more = len(items) - _NAMED
    return "; ".join(items[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def say(text: str) -> None:
    """To a person, on the rank's standard error, in one piece."""
    try:
        os.write(2, f"\n{text}\n".encode())
    except OSError:
        return  # nobody reads any more


def main() -> None:
    """Run beside the process that started this one."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # the rank decides what they mean; this process ends after it
    given = json.loads(sys.argv[1])
    Beacon(BeaconSettings(**given | {"address": tuple(given["address"])})).run()


if __name__ == "__main__":
    main()
