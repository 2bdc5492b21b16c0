"""Processes that audit chunks of rows (`run.audit_chunk`), each started as a program of its own, so that the program that asks need not
be one that can be imported twice.

    python -m vlmrl.run.audit_pool                # what a worker is; its socket is standard input

A worker gets the terms once, then chunks; it ends when its line closes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from vlmrl.data.adapters import Learned
from vlmrl.data.raw import Raw
from vlmrl.errors import VlmrlError
from vlmrl.plugins import import_plugins
from vlmrl.run.audit_chunk import Auditor, Chunk, Terms

_AHEAD = 4
"""Chunks for each worker that may be read before the one that is waited for."""
Job = tuple[Sequence[Raw], Sequence[int], Learned]
"""The arguments of `Auditor.chunk`."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """A process and the line to it. One chunk at a time, so that neither end writes while the other does."""

    def __init__(self, terms: Terms, shared: Path):
        ours, theirs = socket.socketpair()
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
        env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vlmrl.run.audit_pool"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=env
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.line = Connection(ours.detach())
        self._terms: tuple[Terms, Path] | None = (terms, shared)
        self.busy: int | None = None
        """Number of the chunk that it has."""

    def give(self, number: int, job: Job) -> None:
        """Send it a chunk; before the first one the terms. They may be large: sending them waits until the process has started."""
        if self._terms is not None:
            self.line.send(self._terms)
            self._terms = None
        self.line.send(job)
        self.busy = number

    def end(self) -> None:
        """End the process and wait for it."""
        self.line.close()
        self.process.kill()
        self.process.wait()


class AuditPool:
    """Workers that audit chunks. A context manager; at its end they are gone."""

    def __init__(self, terms: Terms, shared: Path, count: int):
        self._terms, self._shared, self._count = terms, shared, count
        self._workers: list[_Worker] = []

    def __enter__(self) -> AuditPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def map(self, jobs: Iterable[Job | Chunk]) -> Iterator[Chunk]:
        """The chunks of the jobs in their order, whichever is ready first. What is a chunk already is passed on in its place.

        Raises:
            VlmrlError: a worker died, or met an error that is no fault of the rows; says at which rows.
        """
        coming = iter(jobs)
        waiting: deque[tuple[int, Job]] = deque()
        asked: dict[int, Job] = {}
        ready: dict[int, Chunk] = {}
        given = taken = 0
        more = True
        while more or taken < given:
            while more and given - taken < _AHEAD * self._count:
                job = next(coming, None)
                if job is None:
                    more = False
                    break
                if isinstance(job, Chunk):
                    ready[given] = job
                else:
                    waiting.append((given, job))
                given += 1
            self._hand_out(waiting, asked)
            while taken in ready:
                yield ready.pop(taken)
                taken += 1
            if asked and taken not in ready:
                self._collect(asked, ready)

    def _hand_out(self, waiting: deque[tuple[int, Job]], asked: dict[int, Job]) -> None:
        if waiting and not self._workers:
            self._workers = [_Worker(self._terms, self._shared) for _ in range(self._count)]
        for worker in self._workers:
            if waiting and worker.busy is None:
                number, job = waiting.popleft()
                asked[number] = job
                worker.give(number, job)

    def _collect(self, asked: dict[int, Job], ready: dict[int, Chunk]) -> None:
        """Wait for at least one worker."""
        busy = {worker.line: worker for worker in self._workers if worker.busy is not None}
        for line in wait(list(busy)):
            worker = busy[line]  # pyright: ignore[reportArgumentType]
            number = worker.busy
            assert number is not None
            job = asked.pop(number)
            try:
                found = worker.line.recv()
            except (EOFError, OSError) as error:
                code = worker.process.wait()
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                first, last = job[0][0], job[0][-1]
                raise VlmrlError(
                    f"a process that checks rows {how} at {first.file}:{first.line} to {last.line}; its own message is above. The same "
                    "command goes on with the rows that are left"
                ) from error
            if not isinstance(found, Chunk):
                raise VlmrlError(str(found))
            ready[number], worker.busy = found, None


def main() -> None:
    """Audit chunks until the line closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the parent, which then closes the line
    line = Connection(os.dup(0))
    try:
        terms, shared = line.recv()
        import_plugins(terms.plugins)
        auditor = Auditor(terms, shared)
        while True:
            line.send(auditor.chunk(*line.recv()))
    except (EOFError, ConnectionError):
        return  # the parent has what it wanted, or is gone


if __name__ == "__main__":
    main()
