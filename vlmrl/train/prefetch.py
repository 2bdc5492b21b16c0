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
from threading import Event
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
    """One background thread that asks the store for media. A context manager: leaving it ends the thread.

    `twin` is a sampler of the same kind, samples and seed as the stage's; it belongs to this object. `fetched` counts media that the
    thread got.
    """

    def __init__(self, store: MediaStore, twin: PromptSampler):
        self.store = store
        self.twin = twin
        self.fetched = 0
        self._thread: ThreadPoolExecutor | None = None
        self._running: list[Future[None]] = []
        self._halt = Event()

    def guess(self, sampler: PromptSampler, ledger: Ledger, *, prompts: int, rollouts: int) -> list[PlannedPrompt]:
        """What `sampler` would plan next. Neither it nor the ledger changes."""
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
        used = sum(self.store.weight(handle) for handle in {handle.key: handle for handle in in_use}.values())
        total = self.store.settings.cache_bytes
        if self._thread is None:
            self._thread = _single_threaded()
        self._halt = Event()
        self._running.append(self._thread.submit(self._fetch, list(wanted), min(total // 2, total - used), self._halt))

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

    def _fetch(self, wanted: Wanted, room: int, halt: Event) -> None:
        """The background thread's work: `room` is in bytes."""
        for ref, root in wanted:
            if halt.is_set():
                return
            try:
                room -= self.store.weigh(ref, root)
                if room < 0:
                    return
                self.store.get(ref, root)
            except MediaError:
                continue  # the step that needs this medium meets the same error, counts it and plans another row
            self.fetched += 1


def _single_threaded() -> ThreadPoolExecutor:
    """A thread with one torch thread of its own.

    torch keeps that number per thread, but a thread's first use takes over what any thread set last, even behind its own setting:
    the new thread therefore asks before it sets, and the calling thread sets its own again, for threads that come later."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
    threads = torch.get_num_threads()
    thread.submit(torch.get_num_threads).result()
    thread.submit(torch.set_num_threads, 1).result()
    torch.set_num_threads(threads)
    return thread
