"""One job beside training, on every rank: the writing of a checkpoint that the next step need not wait for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch.distributed as torch_dist

from vlmrl.extras.scale.copies import Copies
from vlmrl.extras.scale.join import LIMIT
from vlmrl.train import dist
from vlmrl.train.updates import Copy, Updates

T = TypeVar("T")


class Aside:
    """The ranks once more, for a thread beside the main one: a group of its own, so that its calls and those of the main thread
    (`train.dist`, which are otherwise the same) cannot meet. Every rank makes it at the same place."""

    def __init__(self) -> None:
        self._group: Any = torch_dist.new_group(backend="gloo", timeout=LIMIT, group_desc="aside") if dist.world() > 1 else None

    def control(self) -> torch_dist.ProcessGroup | None:
        return self._group

    def collective(self, name: str) -> AbstractContextManager[None]:
        """Not watched: a rank that is lost is noticed by the main thread's calls, or ends this one with an error."""
        del name
        return nullcontext()

    def gather(self, value: T) -> list[T]:
        if self._group is None:
            return [value]
        return dist.gathered(value, self._group)

    def run_synchronized(self, fn: Callable[[], T]) -> T:
        return dist.agreed(fn, self.gather)

    def on_main(self, fn: Callable[[], T]) -> T | None:
        return self.run_synchronized(fn if dist.is_main() else lambda: None)


class Background:
    """Runs one job at a time in a thread. All ranks make, start and end it at the same places; the job may use `ranks`, and what it raises
    on one rank it must raise on all."""

    def __init__(self) -> None:
        self.ranks = Aside()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._job: Future[None] | None = None
        self._copies: WeakKeyDictionary[Updates, Copies] = WeakKeyDictionary()
        """Of a stage, as long as its optimizer lives."""

    def copy_of(self, updates: Updates) -> Copy:
        """Makes the copies that the job writes from, always in the same memory."""
        return self._copies.setdefault(updates, Copies()).take

    @property
    def busy(self) -> bool:
        """Whether a job was started whose end nobody has seen yet."""
        return self._job is not None

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job, and return.

        Raises:
            RuntimeError: one is under way; `wait` for it first.
        """
        if self.busy:
            raise RuntimeError("a job is under way")
        self._job = self._thread.submit(job)

    def ended(self) -> bool:
        """Whether the job has ended on every rank, so that `wait` does not wait. Every rank calls it."""
        return self._job is not None and all(dist.gather(self._job.done()))

    def settle(self, *, wait: bool) -> bool:
        """Whether a job has ended that was not seen to end before; with `wait` it is waited for. Every rank calls it.

        Raises:
            what the job has raised.
        """
        over = self.busy and (wait or self.ended())
        if over:
            self.wait()
        return over

    def wait(self) -> None:
        """Wait for the job, if there is one.

        Raises:
            what the job has raised.
        """
        job, self._job = self._job, None
        if job is not None:
            job.result()
