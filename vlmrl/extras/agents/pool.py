"""The pool of environment workers: episodes in processes that may hang, crash or eat memory, at the cost of one retry.

A pool starts its workers when they are first needed. Each holds several environments and is used by one thread; an operation that
passes its deadline is ended with SIGKILL, together with all that the worker has started. An episode that lost its environment is made
again in a new worker: same task, same seed, same actions, and every observation must be the one that was seen before. So a crash
changes nothing but the time that it takes.

What fails more often than `retries` is a fault: a value with a reason, and no reward. Reasons: `timeout`, `crashed`, `memory`,
`raised:<type>`, `protocol` (the environment returned what none may return), `drift` (made again, it showed something else) and `unlike`
(it began otherwise than the attempt that it was one with until then: `agents.ahead`).

Episodes may begin before they are asked for, while nobody waits for their worker. A worker then never holds more of them than it held
at once without that.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from vlmrl.extras.agents.ahead import Ahead
from vlmrl.extras.agents.lane import Lane
from vlmrl.extras.agents.reply import Reply, read_reply
from vlmrl.rewards.run.process import WorkerLost, WorkerProcess

PROGRAM = "vlmrl.extras.agents.worker"
ALIKE = "attempts must be alike until they act differently, or environment.ahead be false"
Past = tuple[list[tuple[str | None, str]], Mapping[str, str]]
"""([action, None for the reset; hash of what came of it], what the environment says of itself)."""


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """Limits of a pool. Seconds and bytes."""

    workers: int = 2
    deadline: float = 20.0
    """Of one reset or step."""
    memory: int = 2 << 30
    """Beyond what a worker has in use once the environment's modules are imported."""
    retries: int = 2
    """New attempts at an episode that lost its environment, with the same seed."""
    episodes: int = 1000
    """A worker is replaced after so many, when none is running in it."""
    start: float = 120.0
    """Deadline of starting a worker, and of making an environment in it."""
    ahead: bool = True
    """Whether episodes begin ahead of need, and attempts that begin and act alike are one until they part."""


class _Lost(Exception):
    """An attempt failed."""

    def __init__(self, reason: str, detail: str, *, last: bool = False):
        self.reason, self.detail, self.last = reason, detail, last
        super().__init__(reason)


class Episode:
    """One episode of a pool. Its operations wait for each other; the futures do not raise for what an environment does."""

    def __init__(self, host: _Host, number: int, task: Mapping[str, Any], seed: int):
        self.task, self.seed = dict(task), seed
        self.attempt = 0
        self._host, self._number = host, number
        self._process: WorkerProcess | None = None
        """Where its environment is; another than the host's where that was lost."""
        self._past: list[tuple[str | None, str]] = []
        self._fault: Reply | None = None
        self._ahead: Reply | None = None
        """What the reset gave that nobody has asked for yet."""
        self._like: Past | None = None
        """What it must do before it goes on."""
        self._closed = False

    def open(self) -> Future[Reply]:
        """Make the environment ahead of the reset, which would do it otherwise."""
        return self._host.lane.submit(self._ask, None, 0)

    def begin(self) -> None:
        """Reset while nobody waits for the worker, and there is room. May be called twice."""
        self._host.lane.later(self._begin)

    def reset(self) -> Future[Reply]:
        """The first observation."""
        return self._host.lane.submit(self._reset)

    def past(self) -> Past:
        """What it did so far, while it waits."""
        return list(self._past), self._host.identity

    def follow(self, past: Past) -> None:
        """Go on where another episode of this task and seed was. The next operation does first what that one did."""
        self._like = past

    def step(self, action: str) -> Future[Reply]:
        return self._host.lane.submit(self._act, "step", action)

    def propose(self, n: int) -> Future[Reply]:
        return self._host.lane.submit(self._ask, "propose", n)

    def solve(self) -> Future[Reply]:
        return self._host.lane.submit(self._ask, "solve", 0)

    @property
    def began(self) -> bool:
        """Whether its world has ever shown anything."""
        return bool(self._past)

    def pid(self) -> int | None:
        """Of the process that holds its environment; None before its first operation."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Give the environment back; at once where a pool is closed. May be called twice."""
        if not self._closed:
            self._closed = True
            self._host.release(self)

    # ---- on the host's thread -------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Reset ahead of need, unless it has begun or is over."""
        if not (self._closed or self._past or self._fault is not None):
            self._ahead = self._act("reset", None)

    def _reset(self) -> Reply:
        ahead, self._ahead = self._ahead, None
        self._host.begun_ahead += ahead is not None
        return self._act("reset", None) if ahead is None else ahead

    def _act(self, operation: str, action: str | None) -> Reply:
        while self._fault is None:
            try:
                self._recover()
                if operation != "reset":
                    self._come_after()
                answer = self._raw(operation, action)
                self._past.append((action, _digest(answer)))
                return read_reply(answer)
            except _Lost as lost:
                self._failed(lost)
        return self._fault

    def _ask(self, operation: str | None, n: int) -> Reply:
        """An operation that changes nothing; none at all makes the environment."""
        while self._fault is None:
            try:
                self._recover()
                if operation is None:
                    return Reply()
                self._come_after()
                return read_reply(self._request(operation, {"n": n}))
            except _Lost as lost:
                self._failed(lost)
        return self._fault

    def _recover(self) -> None:
        """Make the environment where there is none, and bring it to where the episode is."""
        if self._process is not None and self._process is self._host.process:
            return
        self._process = self._host.worker()
        self._request("open", self._host.opening, start=True)
        for action, before in self._past:
            if _digest(self._raw("reset" if action is None else "step", action)) != before:
                raise _Lost("drift", f"made again after a fault, the episode with seed {self.seed} shows something else", last=True)

    def _come_after(self) -> None:
        """Do what the episode did that this one follows; all that comes of it has to be the same."""
        if self._like is None:
            return
        self._host.begun_ahead += self._ahead is not None
        self._ahead = None
        past, identity = self._like
        if identity != self._host.identity:
            raise _Lost("unlike", f"it is {dict(self._host.identity)}, and {dict(identity)} in another worker; {ALIKE}", last=True)
        for n, (action, came) in enumerate(past):
            if n == len(self._past):
                self._past.append((action, _digest(self._raw("reset" if action is None else "step", action))))
            if self._past[n][1] != came:
                told = f"with seed {self.seed} it {'went on' if n else 'began'} otherwise than another attempt at the same task"
                raise _Lost("unlike", f"{told}; {ALIKE}", last=True)
        self._like = None

    def _raw(self, operation: str, action: str | None) -> Mapping[str, Any]:
        if operation == "reset":
            return self._request("reset", {"task": {**self.task, "attempt": self.attempt}, "seed": self.seed})
        return self._request("step", {"action": action})

    def _request(self, operation: str, more: Mapping[str, Any], *, start: bool = False) -> Mapping[str, Any]:
        limits = self._host.settings
        seconds = limits.start if start else limits.deadline
        request = json.dumps({"do": operation, "place": self._number, "deadline": seconds, **more})[:-1]
        assert self._process is not None
        try:
            answer = self._process.ask(request, seconds)
        except WorkerLost as lost:
            raise _Lost(lost.reason, f"{lost}{self._host.lost()}{self._process.output()}") from lost
        if "reason" in answer:
            if answer["reason"] == "memory":
                self._host.lost()
            raise _Lost(answer["reason"], answer["detail"])
        if operation == "open":
            self._host.opened += 1
            self._host.held.add(self._number)
            self._host.identity = answer["identity"]
        if operation == "reset":
            self._host.resets += 1
        return answer

    def _failed(self, lost: _Lost) -> None:
        if lost.reason in ("drift", "unlike"):
            self.give_back()  # it runs still
        self._process = None
        self._host.held.discard(self._number)
        if lost.last or self.attempt >= self._host.settings.retries:
            self._fault = Reply(fault=lost.reason, detail=lost.detail)
            self._host.said = self._fault.told
            self._host.count(self._host.faults, lost.reason)
        else:
            self.attempt += 1
            self._host.count(self._host.retried, lost.reason)

    def give_back(self) -> None:
        """On the host's thread: the worker drops the environment, if it still has it."""
        if self._process is not None and self._process is self._host.process:
            try:
                self._request("close", {})
            except _Lost:
                return
            finally:
                self._process = None
                self._host.held.discard(self._number)


class _Host:
    """A worker process with the thread that uses it. A worker dies with the thread that started it, and this one lives with the pool."""

    def __init__(self, settings: PoolSettings, opening: Mapping[str, Any], most: Callable[[], int]):
        """`most` episodes may be held where one begins ahead of need."""
        self.settings, self.opening, self._most = settings, opening, most
        self.lane = Lane("environment", self._room)
        self.process: WorkerProcess | None = None
        self.identity: Mapping[str, str] = {}
        self.said = ""
        self.faults: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.started = self.opened = 0
        self.running = self.led = 0
        """Episodes that are not closed yet; those so far that led a group."""
        self.resets = self.begun_ahead = 0
        """Beginnings, and those of them that were there before they were asked for."""
        self.held: set[int] = set()
        """Episodes whose environment is open in the process."""
        self._closed = False
        self._lock = threading.Lock()

    def worker(self) -> WorkerProcess:
        """The process for one that needs an environment; a new one where the last was lost, or has done enough and serves nobody else."""
        if self.process is not None and not self.held and self.opened >= self.settings.episodes:
            self.lost()
        if self.process is None:
            with self._lock:
                if self._closed:
                    raise _Lost("crashed", "the pool of environments is being closed", last=True)
                self.process = WorkerProcess(memory=self.settings.memory, program=PROGRAM)
            self.started += 1
            self.opened = 0
            try:
                self.process.ready(self.settings.start)
            except WorkerLost as lost:
                printed = self.process.output()
                raise _Lost(lost.reason, f"{lost}{self.lost()}{printed}") from lost
        return self.process

    def lost(self) -> str:
        """End the process; says how it died."""
        if self.process is None:
            return ""
        how, self.process = self.process.end(), None
        self.held.clear()
        return how

    def _room(self) -> bool:
        """Whether one more may begin ahead of need. Not in a worker that has done enough: it is replaced once it is empty."""
        return len(self.held) < self._most() and self.opened < self.settings.episodes

    def count(self, what: Counter[str], reason: str) -> None:
        with self._lock:
            what[reason] += 1

    def counted(self, what: Counter[str]) -> Counter[str]:
        """What was counted so far, while others may go on counting."""
        with self._lock:
            return what.copy()

    def enter(self, *, leads: bool) -> None:
        with self._lock:
            self.running += 1
            self.led += leads

    def release(self, episode: Episode) -> None:
        with self._lock:
            self.running -= 1
            closed = self._closed
        if not closed:
            self.lane.submit(episode.give_back)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            process = self.process
        if process is not None:
            process.kill()
        self.lane.close()
        self.lost()


class EnvPool:
    """Workers for the episodes of one environment. `close`, or leaving the `with` block, ends them all."""

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        modules: Sequence[str],
        settings: PoolSettings | None = None,
        alike: bool = True,
    ):
        """`modules` are imported in the workers and register the environment. `alike`: same task and seed, same beginning."""
        self.name, self.settings = name, settings or PoolSettings()
        if self.settings.workers < 1 or self.settings.deadline <= 0 or self.settings.retries < 0:
            raise ValueError(f"a pool has at least one worker, a positive deadline and no negative retries: {self.settings}")
        opening = {"name": name, "arguments": dict(arguments or {}), "modules": list(modules)}
        self.ahead: Ahead[Episode, Reply] = Ahead(self.episode, alike=alike and self.settings.ahead)
        workers = self.settings.workers
        self._hosts = [_Host(self.settings, opening, lambda: -(-self.ahead.most // workers)) for _ in range(workers)]
        self._episodes = 0

    def episode(self, task: Mapping[str, Any], seed: int, *, worker: int | None = None, leads: bool = False) -> Episode:
        """A new episode, on the worker with the fewest, or on the one with that number. Close it. `leads`: others wait for it."""
        host = min(self._hosts, key=lambda one: (one.running, one.led)) if worker is None else self._hosts[worker]
        host.enter(leads=leads)
        self._episodes += 1
        return Episode(host, self._episodes, task, seed)

    @property
    def identity(self) -> Mapping[str, str]:
        """What the environment says of itself; empty before the first episode."""
        return next((host.identity for host in self._hosts if host.identity), {})

    @property
    def faults(self) -> Counter[str]:
        """Episodes that were given up, by reason."""
        return sum((host.counted(host.faults) for host in self._hosts), Counter[str]())

    @property
    def retried(self) -> Counter[str]:
        """Attempts that failed and were made again, by reason."""
        return sum((host.counted(host.retried) for host in self._hosts), Counter[str]())

    @property
    def said(self) -> str:
        """What was told of the last fault, in a line; empty before the first."""
        return next((host.said for host in self._hosts if host.said), "")

    @property
    def started(self) -> int:
        """Workers started so far."""
        return sum(host.started for host in self._hosts)

    def begun(self, *, ahead: bool = False) -> int:
        """Episodes that began so far, those that were made again too; or those that had begun before they were asked for."""
        return sum(host.begun_ahead if ahead else host.resets for host in self._hosts)

    def pids(self) -> list[int]:
        """Process ids of the workers that live."""
        return sorted(host.process.pid for host in self._hosts if host.process is not None)

    def close(self) -> None:
        """Kill and reap all workers, also in the middle of an operation. May be called twice."""
        for host in self._hosts:
            host.close()

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _digest(answer: Mapping[str, Any]) -> str:
    """Of all that an answer says, pixels included."""
    kept = {key: value for key, value in answer.items() if key != "number"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
