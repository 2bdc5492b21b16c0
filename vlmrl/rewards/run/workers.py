"""The pool of reward workers: rewards in processes of their own, so that one that hangs, crashes or eats memory costs one call.

A pool starts workers when they are first needed, each a fresh interpreter (`rewards.run.worker`) that speaks lines of JSON over pipes.
The parent holds the clock: a call that passes its deadline is ended with SIGKILL, together with everything that the worker has
started, and the next call gets a new worker. A fault is None for the group's column, with its reason, and is not tried again:
what has happened is what the journal keeps.

Reasons: `timeout`, `memory`, `crashed`, `raised:<type>`, `contract`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from vlmrl.protocols import RewardContext
from vlmrl.rewards.run.contract import contract_problem
from vlmrl.rewards.run.process import WorkerLost, WorkerProcess
from vlmrl.rewards.run.wire import encode_call
from vlmrl.types import Group


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Limits of a pool. Seconds and bytes."""

    count: int = 0
    """Workers; 0: two, or one on a machine with one core."""
    deadline: float = 5.0
    """Of one call: a column of a group."""
    memory: int = 1 << 30
    """Beyond what a worker has in use once the column's modules are imported (`worker.limit_memory`)."""
    calls: int = 1000
    """A worker is replaced after so many, whatever it has leaked by then."""
    start: float = 120.0
    """Deadline of starting a worker, and of importing a column's modules."""

    @property
    def size(self) -> int:
        return self.count or min(2, os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a call: `values`, or None with the reason and its details."""

    values: list[float | None] | None = None
    reason: str | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkerReward:
    """A reward column that runs in a pool's workers. Importing `modules` there must register it."""

    pool: RewardPool
    number: int
    name: str
    arguments: Mapping[str, Any]
    modules: tuple[str, ...]

    def start(self, call: str, n: int) -> Future[Outcome]:
        """Begin scoring the `n` rollouts of what `wire.encode_call` gave; the future does not raise for what the reward does.

        Returns:
            Of the values, one per rollout, or of the reason why there are none.

        Raises:
            RuntimeError: the pool is closed.
        """
        return self.pool.submit(self, call, n)

    def __call__(self, group: Group, ctx: RewardContext) -> list[float | None]:
        """Score and wait.

        Raises:
            RuntimeError: a fault, with its reason.
        """
        outcome = self.start(encode_call(group, ctx), len(group.rollouts)).result()
        if outcome.values is None:
            raise RuntimeError(f"reward '{self.name}': {outcome.reason}: {outcome.detail}")
        return outcome.values


class RewardPool:
    """Workers of one process. Nothing starts before the first call; `close` (or leaving the `with` block) ends them all."""

    def __init__(self, settings: WorkerSettings | None = None):
        self.settings = settings or WorkerSettings()
        self.started = 0
        """Workers started so far."""
        self._columns = 0
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._lock = threading.Lock()
        self._closed = False
        # a worker dies with the thread that started it (worker.main), and these threads live as long as the pool
        self._threads = ThreadPoolExecutor(max_workers=self.settings.size, thread_name_prefix="reward")

    def column(self, name: str, arguments: Mapping[str, Any], modules: Sequence[str]) -> WorkerReward:
        """Make a registered reward a column of this pool."""
        self._columns += 1
        return WorkerReward(pool=self, number=self._columns, name=name, arguments=dict(arguments), modules=tuple(modules))

    def submit(self, column: WorkerReward, call: str, n: int) -> Future[Outcome]:
        """Score one group in a worker that is free.

        Returns:
            As `WorkerReward.start`.

        Raises:
            RuntimeError: the pool is closed.
        """
        return self._threads.submit(self._score, column, call, n)

    def pids(self) -> list[int]:
        """List the process ids of the workers that live."""
        with self._lock:
            return sorted(worker.pid for worker in self._all)

    def close(self) -> None:
        """Kill and reap all workers, also those in the middle of a call. May be called twice."""
        with self._lock:
            self._closed = True
            workers = list(self._all)
        for worker in workers:
            worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in workers:
            self._end(worker)
        self._idle.clear()

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _score(self, column: WorkerReward, call: str, n: int) -> Outcome:
        worker = self._take()
        if isinstance(worker, Outcome):
            return worker
        limits = self.settings
        try:
            answer: Mapping[str, Any] = {}
            # once per worker and column; imports have the deadline of a start, not of a call
            if column.number not in worker.loaded:
                answer = worker.ask(_load_request(column), limits.start)
            if "reason" not in answer:
                worker.loaded.add(column.number)
                worker.calls += 1
                # `call` was encoded once for all columns and is put in as text
                request = f'{{"column":{column.number},"deadline":{limits.deadline},"call":{call}'
                answer = worker.ask(request, limits.deadline)
        except WorkerLost as lost:
            return self._lost(lost, worker)
        outcome = _outcome(answer, worker, n)
        # what a reward that ran out of memory still holds would count against the next call
        if worker.calls >= limits.calls or outcome.reason == "memory":
            self._end(worker)
        else:
            with self._lock:
                self._idle.append(worker)
        return outcome

    def _take(self) -> WorkerProcess | Outcome:
        """The idle worker that was used last, if it still lives, or a new one, or why there is none."""
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                break
            if not worker.exited():
                return worker
            self._end(worker)
        worker = WorkerProcess(memory=self.settings.memory)
        # listed before it is ready, and `closed` is read under the same lock: `close` kills it, or it is not used
        with self._lock:
            self.started += 1
            self._all.add(worker)
            closed = self._closed
        try:
            if closed:
                raise WorkerLost("crashed", "the pool of reward workers is being closed")
            worker.ready(self.settings.start)
        except WorkerLost as lost:
            return self._lost(lost, worker)
        return worker

    def _lost(self, lost: WorkerLost, worker: WorkerProcess) -> Outcome:
        how = self._end(worker)
        return Outcome(reason=lost.reason, detail=f"{lost}{how}{worker.output()}")

    def _end(self, worker: WorkerProcess) -> str:
        how = worker.end()
        with self._lock:
            self._all.discard(worker)
        return how


def _load_request(column: WorkerReward) -> str:
    request = {"column": column.number, "name": column.name, "arguments": column.arguments, "modules": column.modules}
    return json.dumps(request)[:-1]


def _outcome(answer: Mapping[str, Any], worker: WorkerProcess, n: int) -> Outcome:
    """What the worker says, checked again: it may have been overrun by the reward."""
    if "reason" in answer:
        return Outcome(reason=str(answer["reason"]), detail=f"{answer.get('detail', '')}{worker.output()}")
    problem = contract_problem(answer.get("values"), n)
    if problem is not None:
        return Outcome(reason="contract", detail=problem)
    return Outcome(values=answer["values"])
