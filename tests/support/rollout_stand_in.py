"""Rollout servers without vLLM: the real HTTP front and loop around an engine that makes up its answers, and faults on order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from vlmrl.extras.vllm.host import EngineLoop
from vlmrl.extras.vllm.inputs import Completion, Placed
from vlmrl.extras.vllm.messages import GenerateRequest
from vlmrl.extras.vllm.server import Handler, RolloutServer
from vlmrl.extras.vllm.wire import decode, encode
from vlmrl.extras.vllm.worker import checksum

TOKENS = 4
"""Of an answer, its end included."""


class Receiver:
    """Fuses q, k and v as vLLM does, and passes over names that it does not know."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, torch.Tensor]] = {}
        self.asked: list[set[str]] = []
        self.loads = 0
        self.forgets: str | None = None

    @staticmethod
    def place(name: str) -> str:
        own = name.removeprefix("model.")
        for part in ("q_proj", "k_proj", "v_proj"):
            own = own.replace(part, "qkv_proj")
        return own

    def __call__(self, method: str, *arguments: Any) -> Any:
        return getattr(self, method)(*arguments)

    def vlmrl_begin(self, language_only: bool) -> None:
        self.language_only, self.landed = language_only, {}

    def vlmrl_load(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.loads += 1
        for name, tensor in bucket:
            if "unknown" in name:
                raise ValueError(f"There is no module or parameter named {name!r}")
            if name != self.forgets:
                self.landed[name] = [self.place(name)]
                self.held.setdefault(self.place(name), {})[name] = tensor.clone()

    def vlmrl_finish(self) -> dict[str, Any]:
        parameters = [name for name in self.held if not (self.language_only and name.startswith("visual."))]
        return {"landed": self.landed, "parameters": parameters}

    def vlmrl_sums(self, names: Sequence[str]) -> dict[str, int]:
        self.asked.append(set(names))
        return {name: sum(map(checksum, self.held[name].values())) for name in names}


def made_up(placed: Placed, patches: dict[str, np.ndarray], seed: int, end: int) -> tuple[int, ...]:
    """An answer that depends on everything that was asked."""
    pixels = sum(int(patches[medium.key].sum(dtype=np.int64)) * (n + 1) for n, medium in enumerate(placed.media))
    start = sum(placed.ids) + 7 * seed + pixels
    return (*(5 + start // 29**n % 29 for n in range(TOKENS - 1)), end)


class Engine:
    """A host that computes nothing. Every answer takes `steps` steps; `free` holds all of them back while it is not set."""

    def __init__(self, architecture: str, *, dtype: str = "float32", room: int = 4096):
        self.receiver = Receiver()
        self.free = threading.Event()
        self.free.set()
        self.steps = 2
        self.fails: BaseException | None = None
        """Raised by the next step."""
        self.alter: Callable[[Completion], Completion] = lambda answer: answer
        self.asks: list[GenerateRequest] = []
        self.calls: list[str] = []
        self.dropped: list[str] = []
        self._facts = {"architecture": architecture, "dtype": dtype, "max_model_len": room, "max_num_seqs": 64}
        self._open: dict[str, tuple[GenerateRequest, int, int]] = {}
        self._named = 0

    def facts(self) -> dict[str, Any]:
        return dict(self._facts)

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def ask(self, ask: GenerateRequest) -> list[str]:
        self.asks.append(ask)
        names: list[str] = []
        for seed in ask.seeds:
            self._named += 1
            names.append(str(self._named))
            self._open[names[-1]] = ask, seed, self.steps
        return names

    def step(self) -> list[tuple[str, Completion]]:
        if self.fails is not None:
            raise self.fails
        if not self.free.is_set():
            time.sleep(0.01)
            return []
        out: list[tuple[str, Completion]] = []
        for name, (ask, seed, left) in list(self._open.items()):
            self._open[name] = ask, seed, left - 1
            if left <= 1:
                del self._open[name]
                ids = made_up(ask.placed, dict(ask.patches), seed, ask.ends[0])
                given = Completion(ids=ids, logprobs=(-0.5,) * len(ids), reason="stop", cached=3, prompt_ids=ask.placed.ids)
                out.append((name, self.alter(given)))
        return out

    def drop(self, names: Sequence[str]) -> None:
        self.dropped += names
        for name in names:
            self._open.pop(name, None)

    def call(self, method: str, *arguments: Any) -> Any:
        self.calls.append(method)
        return self.receiver(method, *arguments)


Fault = Callable[[Handler, Callable[[], list[memoryview]]], None]
"""What a server does with a question in place of its reply."""


def cut(handler: Handler, made: Callable[[], list[memoryview]]) -> None:
    """Close the line in the middle of a reply."""
    begin_reply(handler)
    whole = b"".join(made())
    handler.wfile.write(f"{len(whole):x}\r\n".encode() + whole[: len(whole) // 2])


def garbage(handler: Handler, made: Callable[[], list[memoryview]]) -> None:
    """A whole reply that is no message."""
    begin_reply(handler)
    handler.wfile.write(b"5\r\nhello\r\n0\r\n\r\n")


def silence(handler: Handler, made: Callable[[], list[memoryview]]) -> None:
    """Begin a reply, and say nothing more for longer than the asker waits."""
    begin_reply(handler)
    handler.wfile.flush()
    time.sleep(1.5)


def begin_reply(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.send_header("Connection", "close")
    handler.end_headers()


@dataclass
class Served:
    """A server of a test, with its engine."""

    engine: Engine
    server: RolloutServer
    loop: EngineLoop
    thread: threading.Thread
    faults: list[Fault] = field(default_factory=list[Fault])
    """For the next questions, one each."""
    posts: list[str] = field(default_factory=list[str])
    """Paths of what was posted."""
    failed: list[BaseException] = field(default_factory=list[BaseException])
    """What ended the loop."""

    @property
    def address(self) -> str:
        return self.server.address

    def kill(self) -> None:
        """Nobody listens there any more, and open connections are cut."""
        self.loop.stop()
        self.thread.join(10)
        self.server.shut()


@contextmanager
def serving(architecture: str, *, port: int = 0, token: str | None = None, **options: Any) -> Iterator[Served]:
    """A rollout server on this machine."""
    engine = Engine(architecture, **options)
    server = RolloutServer(("127.0.0.1", port), token=token)
    loop = EngineLoop(engine)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            loop.run()
        except BaseException as error:  # noqa: BLE001 (kept for the test to look at)
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    out = Served(engine, server, loop, thread, failed=failed)

    class Faulty(Handler):
        def do_POST(self) -> None:
            out.posts.append(self.path)
            super().do_POST()

        def _reply(self, made: Callable[[], list[memoryview]]) -> None:
            if out.faults and self.path.endswith("generate"):
                out.faults.pop(0)(self, made)
                return
            super()._reply(made)

    server.RequestHandlerClass = Faulty
    thread.start()
    server.open(loop)
    try:
        yield out
    finally:
        if thread.is_alive() or failed:
            out.kill()


def other_weights(handler: Handler, made: Callable[[], list[memoryview]]) -> None:
    """Right answers that bear the version of other weights."""
    message = decode(bytearray(b"".join(made())))
    message.body["version"]["policy"] += 1
    begin_reply(handler)
    raw = b"".join(encode(message.body, message.tensors.items()))
    handler.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n0\r\n\r\n")
