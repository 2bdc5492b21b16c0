"""The media of the next step are decoded while the current one runs.

What comes next is a guess: a second sampler is put into the state of the first, as a resumed process would be, and plans with the
ledger as it is now. A wrong guess costs time and nothing else, because what is fetched only fills the media store, which gives the
same entry whoever asked first. A medium that cannot be read is left alone: the step that needs it meets the fault itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Lock
from types import TracebackType

import torch

from vlmrl.errors import MediaError
from vlmrl.media.store import MediaStore
from vlmrl.protocols import PromptSampler
from vlmrl.sampling.ledger import Ledger
from vlmrl.types import MediaHandle, MediaRef, PlannedPrompt

Wanted = Sequence[tuple[MediaRef, Path]]
"""Media with the folders that their paths are relative to."""


class Prefetcher:
    """Background threads that ask the store for media: one, or as many as the store has worker processes. A context manager: leaving it
    ends them.

    `twin` is a sampler of the same kind, samples and seed as the stage's; it belongs to this object. `fetched` counts media that the
    threads got.
    """

    def __init__(self, store: MediaStore, twin: PromptSampler):
        self.store = store
        self.twin = twin
        self.beside: MediaStore | None = None
        """A store with other settings, for which each medium is decoded at the same time."""
        self.fetched = 0
        self._thread: ThreadPoolExecutor | None = None
        self._running: list[Future[None]] = []
        self._halt = Event()
        self._lock = Lock()

    def guess(self, sampler: PromptSampler, ledger: Ledger, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
        """Plan with a twin what `sampler` would plan next. Neither it nor the ledger changes."""
        # through JSON, as a checkpoint would: the twin shares no list with the sampler
        self.twin.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
        return self.twin.plan(ledger, prompts=prompts, rollouts=rollouts)

    def start(self, wanted: Wanted, in_use: Sequence[MediaHandle]) -> None:
        """Fetch these media, in this order, instead of those still waiting, until they fill half of the store's cache or all of it
        that the media `in_use` leave.

        Raises:
            Exception: what the thread met before and is no fault of a medium.
        """
        self.stop()
        for done in [future for future in self._running if future.done()]:
            self._running.remove(done)
            done.result()
        # so that what is fetched pushes no medium of the current step out of the cache
        used = sum(self.store.weight(handle) for handle in {handle.key: handle for handle in in_use}.values())
        total = self.store.settings.cache_bytes
        if self._thread is None:
            self._thread = _single_threaded(max(1, self.store.settings.workers))
        self._halt = Event()
        share = _Share(list(wanted), min(total // 2, total - used), self._halt)
        for _ in range(max(1, self.store.settings.workers)):
            self._running.append(self._thread.submit(self._fetch, share))

    def stop(self) -> None:
        """Forget what still waits; a medium that is being decoded is finished. Returns at once."""
        self._halt.set()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the thread after the medium that it works on. Raises what it met, unless the block raised."""
        self.stop()
        if self._thread is None:
            return
        self._thread.shutdown(wait=True)
        self._thread = None
        ended, self._running = self._running, []
        if kind is None:
            for future in ended:
                future.result()

    def _fetch(self, share: _Share) -> None:
        """Fetch media until nothing waits, the room is used up, or the work is stopped."""
        while (next_one := share.take()) is not None:
            ref, root = next_one
            try:
                # both stores have room for as many bytes, so the larger entry counts
                if not share.afford(max(one.weigh(ref, root) for one in (self.store, self.beside) if one is not None)):
                    return
                self.store.get(ref, root, also=self.beside)
            except MediaError:
                continue  # the step that needs this medium meets the same error, counts it and plans another row
            with self._lock:
                self.fetched += 1


class _Share:
    """What several threads fetch together: each medium once, begun in the order of the list, within `room` bytes."""

    def __init__(self, wanted: Wanted, room: int, halt: Event):
        self._waiting = iter(wanted)
        self._room = room
        self._halt = halt
        self._lock = Lock()

    def take(self) -> tuple[MediaRef, Path] | None:
        with self._lock:
            return None if self._halt.is_set() else next(self._waiting, None)

    def afford(self, size: int) -> bool:
        """Take `size` bytes of the room; False where they do not fit, and then all threads stop."""
        with self._lock:
            self._room -= size
            if self._room < 0:
                self._halt.set()
            return self._room >= 0


def _single_threaded(count: int) -> ThreadPoolExecutor:
    """`count` threads with one torch thread each.

    torch keeps that number per thread, but a thread's first use takes over what any thread set last, even behind its own setting:
    the new thread therefore asks before it sets, and the calling thread sets its own again, for threads that come later."""
    ready = Barrier(count)

    def settle() -> None:
        ready.wait(60)  # so that each thread gets one of these calls
        torch.get_num_threads()
        torch.set_num_threads(1)

    pool = ThreadPoolExecutor(max_workers=count, thread_name_prefix="prefetch")
    threads = torch.get_num_threads()
    for done in [pool.submit(settle) for _ in range(count)]:
        done.result()
    torch.set_num_threads(threads)
    return pool
