"""Watches the ranks of a run: who keeps the others waiting, where that rank was last seen, and when to give it up.

A collective returns when all ranks have come to it. If one does not come any more (killed, stopped, a dead host or network), the others
would wait without a word for as long as the process group allows. So a small process beside each rank (`scale.beacon`) gives signs of life
for it, and this module tells that process what the rank is doing: the number of the collective that it has reached, and the line of our
code at which its main thread is.

* A rank that is lost (ended without a word, stopped, or not heard of for `LOST_SECONDS`) ends the job with exit code 70 and its name.
* A rank that lives and has not come yet is waited for: a judge, a big file or a long answer may take their time. It is said after
  `WARN_SECONDS`, and again at longer and longer intervals, whom the others wait for and where it is.
* A collective to which all ranks have come and which does not end within the patience of the run ends the job as well.

What was saved stays, and the same command resumes. Nothing here runs in a run of one process.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import vlmrl
from vlmrl.errors import ConfigError, VlmrlError
from vlmrl.extras.scale import beacon
from vlmrl.extras.scale.beacon import BeaconSettings, Wire
from vlmrl.train import dist

BEAT_SECONDS = 2.0
"""Between two signs of life; shorter where the two below are."""
WARN_VARIABLE, WARN_SECONDS = "VLMRL_RANK_WARN_SECONDS", 60.0
"""How long a rank waits for another before it says so; then again after twice the time, and so on."""
LOST_VARIABLE, LOST_SECONDS = "VLMRL_RANK_LOST_SECONDS", 10.0
"""How long nothing may be heard of a rank, or its process be stopped, until it is given up."""
PATIENCE_VARIABLE, PATIENCE_SECONDS = "VLMRL_RANK_PATIENCE_SECONDS", 600.0
"""How long a collective may take once all ranks have come to it."""
_PACKAGE = str(Path(vlmrl.__file__).parent)
_NOT_A_PLACE = {__file__, dist.__file__}
_RESTARTS = 3
_OF_THE_NETWORK = re.compile(r"connection|gloo|nccl|socket|peer|timed? ?out", re.I)
"""What an error of a collective says when it is not the caller's: another rank has gone, or the network."""


class Watchdog:
    """A thread beside the main thread of a rank, and the rank's beacon."""

    def __init__(
        self,
        *,
        rank: int,
        world: int,
        address: tuple[str, int],
        token: str,
        listener: socket.socket | None = None,
        waits: Waits,
        end: Callable[[int], None] = os._exit,
    ):
        """
        Args:
            address: host and port at which rank 0's beacon listens, as the other ranks reach it.
            token: known to the ranks of this job alone.
            listener: on rank 0, the socket that listens there.
            end: ends the process with an exit code; the main thread is in a collective and cannot.
        """
        self._listener, self._end = listener, end
        beat = min(BEAT_SECONDS, waits.lost / 4, waits.warn / 4)
        self._settings = BeaconSettings(
            rank=rank,
            world=world,
            pid=os.getpid(),
            host=socket.gethostname(),
            address=address,
            token=token,
            parent=-1,
            listener=-1 if listener is None else listener.fileno(),
            beat=beat,
            **asdict(waits),
        )
        self._main = threading.main_thread().ident
        self._stopped = threading.Event()
        self._reached = 0
        self._waiting: tuple[str, float] | None = None
        self._doing, self._news = "start", False
        self._starts = 0
        self._start()
        self._thread = threading.Thread(target=self._talk, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def collective(self, name: str) -> Iterator[None]:
        """A block in which this rank waits for the others. All ranks come to the same blocks in the same order.

        Raises:
            RankLost: the connection to the others broke within the block. Where the beacons know who is lost, the process has ended before.
        """
        self._reached += 1
        self._waiting = (name, time.monotonic())
        try:
            yield
        except RuntimeError as error:
            if not _OF_THE_NETWORK.search(str(error)):
                raise
            said = str(error).strip().splitlines()[0]
            self._stopped.wait(max(self._settings.lost, beacon.LEFT) + 2 * self._settings.beat + beacon.TAKES)
            raise RankLost(f"{name} failed, {self.doing}: {said}; run the same command to go on") from error
        finally:
            self._waiting = None

    @property
    def doing(self) -> str:
        """What the run is at."""
        return self._doing

    @doing.setter
    def doing(self, what: str) -> None:
        self._doing, self._news = what, True

    def close(self) -> None:
        """Say goodbye, and let the beacon and the thread end."""
        self._stopped.set()
        self._wire.send(self._status(time.monotonic()))
        self._wire.send({"left": True})
        self._thread.join(timeout=1.0)
        try:
            self._beacon.wait(timeout=beacon.TAKES)
        except subprocess.TimeoutExpired:
            self._beacon.kill()
            self._beacon.wait()
        self._wire.close()
        if self._listener is not None:
            self._listener.close()

    def _start(self) -> None:
        """Start the beacon: the file alone, without the packages of the environment."""
        ours, its = socket.socketpair()
        listener = () if self._listener is None else (self._listener.fileno(),)
        settings = asdict(self._settings) | {"parent": its.fileno()}
        with its:
            self._beacon = subprocess.Popen(
                [sys.executable, "-I", "-S", beacon.__file__, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(its.fileno(), *listener),
                start_new_session=True,  # a signal to the rank's group is for the rank
            )
        self._wire = Wire(ours)
        self._starts += 1

    def _talk(self) -> None:
        """Tell the beacon what the rank is doing, and end the process when it says so."""
        due = 0.0
        while not self._stopped.is_set():
            now = time.monotonic()
            if now >= due or self._news:
                due, self._news = now + self._settings.beat, False
                self._wire.send(self._status(now))
            if not self._wire.open:
                self._again()
                continue
            with selectors.DefaultSelector() as selector:
                selector.register(self._wire.sock, selectors.EVENT_READ)
                heard = selector.select(min(0.2, self._settings.beat))
            for line in self._wire.lines() if heard and self._wire.open else ():
                if "lost" in line:
                    self._end(RankLost.exit_code)

    def _again(self) -> None:
        """The beacon has ended without being told to: start another. The others give this rank up if that does not help."""
        self._beacon.kill()
        code = self._beacon.wait()
        if not self._stopped.is_set():
            beacon.say(f"warning: the process that gives signs of life for rank {self._settings.rank} has ended (exit code {code})")
            if self._starts > _RESTARTS:
                self._stopped.wait()
            else:
                self._start()

    def _status(self, now: float) -> dict[str, object]:
        waiting = self._waiting
        name, since = waiting or ("", now)
        return {"reached": self._reached, "waiting": name, "waited": now - since, "doing": self._place()}

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


def listen() -> socket.socket:
    """A socket at which rank 0's beacon hears the others, on a free port of every network of this host."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        except OSError:  # a kernel with IPv6 whose interfaces have none
            return socket.create_server(("", 0), backlog=1024)
    return socket.create_server(("", 0), backlog=1024)


def address(master: str) -> str:
    """This host as the others reach it: where its route to the first host begins, which may be this host itself."""
    try:
        family, _, _, _, place = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # sends nothing
            own = str(probe.getsockname()[0])
    except OSError:
        return master
    return master if own.startswith("127.") or own == "::1" else own  # a host's own name is often a loopback address to itself


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How long is waited: see the constants of this module."""

    warn: float
    lost: float
    patience: float


def waits(patience: float | None = None) -> Waits:
    """As the environment says, or the defaults.

    Raises:
        ConfigError: a variable holds no positive number.
    """
    return Waits(
        warn=seconds(WARN_VARIABLE, WARN_SECONDS),
        lost=seconds(LOST_VARIABLE, LOST_SECONDS),
        patience=seconds(PATIENCE_VARIABLE, patience or PATIENCE_SECONDS),
    )


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
