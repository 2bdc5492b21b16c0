"""A worker process as its parent sees it: start it, call it under a deadline, end it with all its children. Rewards and environments."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from vlmrl.rewards.run.contract import OUTPUT_CHARS

START = "import json,sys;s=json.loads(sys.argv[1]);sys.path[:]=s['path'];from {program} import main;main(s)"
REWARDS = "vlmrl.rewards.run.worker"
"""The program of a worker: a module with `main(setup)` that calls `serve`."""
SLICE_SECONDS = 0.2
"""How often a silent worker is looked at: something that it started may hold its pipes open after its death."""
REPLY_BYTES = 1 << 24
REAP_SECONDS = 10.0
LAST_SECONDS = 1.0
"""A worker whose pipe has ended gets so long to be dead, so that how it died is known."""


class WorkerLost(Exception):
    """The worker did not answer and is of no use any more. `reason`: `timeout` or `crashed`."""

    def __init__(self, reason: str, detail: str):
        self.reason = reason
        super().__init__(detail)


class WorkerProcess:
    """A fresh interpreter that runs `main` of a module, in a process group of its own.

    Used by one thread at a time, except for `kill`. The thread that makes it must outlive it (`worker.main`).
    """

    def __init__(self, *, memory: int, program: str = REWARDS):
        request_end, self._requests = os.pipe()
        self._replies, reply_end = os.pipe()
        self._printed, print_end = os.pipe()
        # a worker that does not read fills the pipe: a write that blocks would outlast the deadline
        os.set_blocking(self._requests, False)
        setup = {"path": [str(folder) for folder in sys.path], "parent": os.getpid(), "replies": reply_end, "memory": memory}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", START.format(program=program), json.dumps(setup)],
                stdin=request_end,
                stdout=print_end,
                stderr=print_end,
                pass_fds=(reply_end,),
                start_new_session=True,
                # one thread each, unless the user says otherwise: there are several, and the trainer needs the cores
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
        except OSError:
            for descriptor in (self._requests, self._replies, self._printed):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (request_end, reply_end, print_end):
                os.close(descriptor)
        self._lock = threading.Lock()
        self._ended = False
        self._output = bytearray()
        self._asked = 0
        self.calls = 0
        self.loaded: set[int] = set()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self, seconds: float) -> None:
        """Wait until it has started.

        Raises:
            WorkerLost: it did not, in time.
        """
        self._exchange(b"", 0, seconds)

    def ask(self, request: str, seconds: float) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Args:
            request: a JSON object without its closing brace: a number is added, and must come back.
            seconds: deadline of the answer.

        Returns:
            The object of the answer's line.

        Raises:
            WorkerLost: it died, or did not answer in time.
        """
        self._asked += 1
        self._output.clear()
        return self._exchange(f'{request},"number":{self._asked}}}\n'.encode(), self._asked, seconds)

    def output(self) -> str:
        """Give the end of what it printed since the last request, for messages."""
        text = bytes(self._output).decode("utf-8", "replace").strip()
        return f"\nit printed:\n{text}" if text else ""

    def exited(self) -> bool:
        """Check whether it has died by itself. It stays a zombie, so that its group's number stays its own, until `end`."""
        if not hasattr(os, "waitid"):
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> None:
        """Send SIGKILL to the worker and its children. Any thread may call it, at any time."""
        with self._lock:
            if not self._ended:
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> str:
        """Kill and reap it, close the pipes; says how it died, for messages. May be called twice."""
        own = self.exited() if not self._ended else False  # asked before the kill, which would look like a death of its own
        self.kill()
        with self._lock:
            if not self._ended:
                self._ended = True
                self._process.wait(REAP_SECONDS)
                for descriptor in (self._requests, self._replies, self._printed):
                    os.close(descriptor)
        code = self._process.returncode
        if not own and code == -signal.SIGKILL:
            return ""
        if code < 0:
            hint = "; perhaps the machine ran out of memory" if code == -signal.SIGKILL else ""
            return f"; it died of {signal.Signals(-code).name}{hint}"
        return f"; it exited with status {code}"

    def _exchange(self, message: bytes, number: int, seconds: float) -> dict[str, Any]:
        """Write while the pipe takes it, read what comes, until a whole line has come."""
        end = time.monotonic() + seconds
        rest, reply = memoryview(message), bytearray()
        with selectors.DefaultSelector() as selector:
            if message:
                selector.register(self._requests, selectors.EVENT_WRITE)
            selector.register(self._replies, selectors.EVENT_READ)
            # read along with the answer: a reward that prints much would block on a full pipe and miss its deadline
            selector.register(self._printed, selectors.EVENT_READ)
            while not reply.endswith(b"\n"):
                left = end - time.monotonic()
                if left <= 0:
                    raise WorkerLost("timeout", f"no answer within {seconds:g} seconds")
                ready = {key.fd for key, _ in selector.select(min(left, SLICE_SECONDS))}
                if not ready and self.exited():
                    raise WorkerLost("crashed", "the worker died")
                if self._printed in ready and not self._listen():
                    selector.unregister(self._printed)
                if self._replies in ready:
                    self._read(reply)
                if self._requests in ready:
                    rest = self._write(rest)
                    if not rest:
                        selector.unregister(self._requests)
        self._listen_to_the_rest()
        return self._checked(bytes(reply), number)

    def _write(self, rest: memoryview) -> memoryview:
        try:
            return rest[os.write(self._requests, rest) :]
        except BrokenPipeError as error:
            self._last_moment()
            raise WorkerLost("crashed", "the worker does not read") from error

    def _read(self, reply: bytearray) -> None:
        piece = os.read(self._replies, 1 << 16)
        if not piece:
            self._last_moment()
            raise WorkerLost("crashed", "the worker died")
        reply += piece
        if len(reply) > REPLY_BYTES:
            raise WorkerLost("crashed", f"the worker wrote more than {REPLY_BYTES} bytes into the pipe of its answers")

    def _last_moment(self) -> None:
        end = time.monotonic() + LAST_SECONDS
        while not self.exited() and time.monotonic() < end:
            time.sleep(0.002)

    def _listen(self) -> bool:
        """Take what it printed, keep the end of it; False when nobody can print any more."""
        piece = os.read(self._printed, 1 << 16)
        self._output += piece
        del self._output[:-OUTPUT_CHARS]
        return bool(piece)

    def _listen_to_the_rest(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._printed, selectors.EVENT_READ)
            for _ in range(64):  # what was printed before the answer; a thread of the reward may print for ever
                if not selector.select(0) or not self._listen():
                    break

    def _checked(self, reply: bytes, number: int) -> dict[str, Any]:
        try:
            answer: Any = json.loads(reply)
        except ValueError as error:
            raise WorkerLost("crashed", f"something wrote into the pipe of the worker's answers: {reply[:100]!r}") from error
        # an answer to an earlier request, or a line that the reward itself has written: the scores would be of another group
        if not isinstance(answer, Mapping) or answer.get("number") != number:
            raise WorkerLost("crashed", f"something wrote into the pipe of the worker's answers: {reply[:100]!r}")
        return dict(answer)
