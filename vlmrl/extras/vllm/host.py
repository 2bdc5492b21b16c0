"""The engine of a rollout server and the one thread that may touch it. Others hand it tasks, and wait.

The loop takes what was asked, computes one step for all of it, and hands out the answers that have ended. Weights come in between two
steps. Whatever is open when they begin is given up as an answer of another version, and until they are in place nothing is answered.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from vlmrl.errors import VlmrlError
from vlmrl.extras.vllm.engine import Core
from vlmrl.extras.vllm.inputs import Completion, Version, engine_input_of, sampling_params
from vlmrl.extras.vllm.messages import GenerateRequest

T = TypeVar("T")

IDLE = 0.2
"""Seconds between two looks at whether the loop is to end."""
STUCK = 300.0
"""Seconds that one step of the engine may take before the server says no more that it lives."""


class RefusalError(VlmrlError):
    """A question or weights are not taken. `reason` is a short code: `version`, `load`, `refused`, `ended`."""

    def __init__(self, reason: str, detail: str):
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}")


class Host(Protocol):
    """A running engine."""

    def facts(self) -> dict[str, Any]:
        """What it is, as JSON: `architecture`, `dtype`, `max_model_len`, `max_num_seqs`."""
        ...

    @property
    def busy(self) -> bool: ...

    def ask(self, ask: GenerateRequest) -> list[str]:
        """Put in a request for each seed; their names."""
        ...

    def step(self) -> list[tuple[str, Completion]]: ...

    def drop(self, names: Sequence[str]) -> None: ...

    def call(self, method: str, *arguments: Any) -> Any: ...


class VllmHost:
    """vLLM in this process."""

    def __init__(self, core: Core):
        self.core = core

    def facts(self) -> dict[str, Any]:
        o = self.core.options
        return {"architecture": o.architecture, "dtype": o.dtype, "max_model_len": o.max_model_len, "max_num_seqs": o.max_num_seqs}

    @property
    def busy(self) -> bool:
        return self.core.busy

    def ask(self, ask: GenerateRequest) -> list[str]:
        given = engine_input_of(ask.placed, ask.patches, ask.version)
        return [self.core.ask(given, sampling_params(ask.settings, seed, ends=ask.ends, forbidden=ask.forbidden)) for seed in ask.seeds]

    def step(self) -> list[tuple[str, Completion]]:
        return self.core.step()

    def drop(self, names: Sequence[str]) -> None:
        self.core.drop(names)

    def call(self, method: str, *arguments: Any) -> Any:
        return self.core.call(method, *arguments)


class Ticket:
    """A question that is being answered."""

    def __init__(self, ask: GenerateRequest):
        self.ask = ask
        self.answers: list[Completion | None] = [None] * len(ask.seeds)
        self.refusal: RefusalError | None = None
        self.done = threading.Event()

    def fail(self, refusal: RefusalError) -> None:
        """There will be no answer."""
        self.refusal = refusal
        self.done.set()


class EngineLoop:
    """Runs the engine. `run` is for the thread that owns it, everything else for any thread."""

    def __init__(self, host: Host):
        self.facts = host.facts()
        self.held: Version | None = None
        """Version of the weights in the engine; None while there are none, or some of two versions."""
        self.answered = 0
        self.ended = threading.Event()
        self._host = host
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._open: dict[str, tuple[Ticket, int]] = {}
        self._load: str | None = None
        """Name of the weights that are coming in."""
        self._stop = threading.Event()
        self._moved = time.monotonic()

    # ---- for any thread ------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the engine gets on."""
        return not self.ended.is_set() and time.monotonic() - self._moved < STUCK

    def answer(self, ask: GenerateRequest) -> Ticket:
        """Have a question answered."""
        ticket = Ticket(ask)
        self.do(lambda: self._ask(ticket)).add_done_callback(lambda future: _note(ticket, future))
        return ticket

    def abandon(self, ticket: Ticket) -> None:
        """Nobody waits for these answers any more."""
        self.do(lambda: self._abandon(ticket))

    def do(self, task: Callable[[], T]) -> Future[T]:
        """Have the engine's thread do something."""
        future: Future[T] = Future()
        self._tasks.put((task, future))
        if self.ended.is_set():
            self._refuse_tasks()
        return future

    def begin(self, load: str, *, language_only: bool) -> Future[None]:
        """Weights are coming, under this name."""
        return self.do(lambda: self._begin(load, language_only))

    def load(self, load: str, method: str, *arguments: Any) -> Future[Any]:
        """A part of them, or a question about them (`worker.WeightReceiver`)."""
        return self.do(lambda: self._loading(load, method, *arguments))

    def commit(self, load: str, version: Version) -> Future[None]:
        """They are in place, and of this version."""
        return self.do(lambda: self._commit(load, version))

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()

    # ---- the engine's thread -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until `stop`. Whatever fails in the engine itself ends the loop."""
        try:
            while not self._stop.is_set():
                self._take_tasks()
                if self._host.busy:
                    for name, answer in self._host.step():
                        self._landed(name, answer)
                self._moved = time.monotonic()
        finally:
            self.ended.set()
            for ticket in {id(ticket): ticket for ticket, _ in self._open.values()}.values():
                ticket.fail(_ended())
            self._refuse_tasks()

    def _take_tasks(self) -> None:
        """Do what was handed in; wait a little where there is nothing else to do."""
        wait = 0.0 if self._host.busy else IDLE
        while True:
            try:
                task, future = self._tasks.get(timeout=wait) if wait else self._tasks.get_nowait()
            except queue.Empty:
                return
            wait = 0.0
            try:
                future.set_result(task())
            except (VlmrlError, ValueError) as error:  # what was handed in is wrong, and the engine is well
                future.set_exception(error)
            except BaseException as error:
                future.set_exception(error)
                raise

    def _refuse_tasks(self) -> None:
        while True:
            try:
                _, future = self._tasks.get_nowait()
            except queue.Empty:
                return
            future.set_exception(_ended())

    def _ask(self, ticket: Ticket) -> None:
        if self.held is None or ticket.ask.version != self.held:
            raise RefusalError("version", f"asked for weights {ticket.ask.version}, and this server holds {self.held}")
        for place, name in enumerate(self._host.ask(ticket.ask)):
            self._open[name] = ticket, place

    def _landed(self, name: str, answer: Completion) -> None:
        if name not in self._open:
            return
        ticket, place = self._open.pop(name)
        ticket.answers[place] = answer
        self.answered += 1
        if None not in ticket.answers:
            ticket.done.set()

    def _abandon(self, ticket: Ticket) -> None:
        own = [name for name, (of, _) in self._open.items() if of is ticket]
        for name in own:
            del self._open[name]
        self._host.drop(own)

    def _begin(self, load: str, language_only: bool) -> None:
        for ticket in {id(ticket): ticket for ticket, _ in self._open.values()}.values():
            ticket.fail(RefusalError("version", "other weights came before the answers"))
        self._host.drop(list(self._open))
        self._open.clear()
        if self._load is not None:  # whoever sent these has gone; the engine must end one reload before the next
            self._host.call("vlmrl_finish")
        self.held, self._load = None, load
        self._host.call("vlmrl_begin", language_only)

    def _loading(self, load: str, method: str, *arguments: Any) -> Any:
        self._require_load(load)
        return self._host.call(method, *arguments)

    def _commit(self, load: str, version: Version) -> None:
        self._require_load(load)
        self.held, self._load = version, None

    def _require_load(self, load: str) -> None:
        if load != self._load:
            raise RefusalError("load", "other weights are coming in, or none; another trainer uses this server")


def _note(ticket: Ticket, future: Future[None]) -> None:
    """A question that was not taken."""
    error = future.exception()
    if error is not None:
        ticket.fail(error if isinstance(error, RefusalError) else RefusalError("refused", str(error)[:500]))


def _ended() -> RefusalError:
    return RefusalError("ended", "the engine of this server has ended")
