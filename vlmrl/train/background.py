"""One job beside training, on every rank: the writing of a checkpoint that the next step need not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from vlmrl.train import dist


class Background:
    """Runs one job at a time in a thread. All ranks make, start and end it at the same places; the job may use `ranks`, and what it raises
    on one rank it must raise on all."""

    def __init__(self) -> None:
        self.ranks = dist.Aside()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a job was started whose end nobody has seen yet."""
        return self._thread is not None

    def start(self, job: Callable[[], None]) -> None:
        """Begin a job, and return.

        Raises:
            RuntimeError: one is under way; `wait` for it first.
        """
        if self.busy:
            raise RuntimeError("a job is under way")
        self._error = None

        def run() -> None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 (raised in the main thread by `wait`)
                self._error = error

        self._thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        """Whether the job has ended on every rank, so that `wait` does not wait. Every rank calls it."""
        return self._thread is not None and all(dist.gather(not self._thread.is_alive()))

    def wait(self) -> None:
        """Wait for the job, if there is one.

        Raises:
            what the job has raised.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
