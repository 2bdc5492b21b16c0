"""Rollout servers without vLLM: the real routes and the real group for weights around an engine that makes up its answers, and faults on
order."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse

from vlmrl.extras.vllm.carrier import Carrier, CarrierError, Line, cut
from vlmrl.extras.vllm.endpoint import Desk, Plugin
from vlmrl.extras.vllm.inputs import Completion, Placed
from vlmrl.extras.vllm.wire import PREFIX, GenerateRequest, RefusalError, ScoreRequest
from vlmrl.extras.vllm.worker import LoadReport, checksum, nothing

TOKENS = 4
"""Of an answer, its end included."""


class Receiver:
    """Fuses q, k and v as vLLM does, and passes over names that it does not know."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, torch.Tensor]] = {}
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
        self.language_only, self.landed, self.arrived = language_only, {}, {}

    def vlmrl_load(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.loads += 1
        for name, tensor in bucket:
            if "unknown" in name:
                raise ValueError(f"There is no module or parameter named {name!r}")
            self.arrived[name] = checksum(tensor)
            if name != self.forgets:
                self.landed[name] = [self.place(name)]
                self.held.setdefault(self.place(name), {})[name] = tensor.clone()

    def vlmrl_finish(self) -> LoadReport:
        own = {name: parts for name, parts in self.held.items() if not (self.language_only and name.startswith("visual."))}
        held = {name: sum(map(checksum, parts.values())) for name, parts in own.items()}
        sizes = {name: sum(part.numel() for part in parts.values()) for name, parts in own.items()}
        return {**nothing(), "landed": self.landed, "arrived": self.arrived, "held": held, "sizes": sizes}


def made_up(placed: Placed, patches: Mapping[str, np.ndarray], seed: int, end: int) -> tuple[int, ...]:
    """An answer that depends on everything that was asked."""
    pixels = sum(int(patches[medium.key].sum(dtype=np.int64)) * (n + 1) for n, medium in enumerate(placed.media))
    start = sum(placed.ids) + 7 * seed + pixels
    return (*(5 + start // 29**n % 29 for n in range(TOKENS - 1)), end)


def made_up_scores(placed: Placed, patches: Mapping[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Log-probs that depend on everything that was asked."""
    pixels = sum(int(patches[medium.key].sum(dtype=np.int64)) * (n + 1) for n, medium in enumerate(placed.media))
    return (-((ids + sum(placed.ids) + pixels) % 997) / 97).astype(np.float32)


class Engine:
    """An engine that computes nothing. `free` holds all answers back while it is not set."""

    def __init__(self, architecture: str, *, dtype: str = "float32", room: int = 4096):
        self.receiver = Receiver()
        self.free = threading.Event()
        self.free.set()
        self.fails = False
        """It ends with the next answer."""
        self.stuck = False
        self.alter: Callable[[Completion], Completion] = lambda answer: answer
        self.asks: list[GenerateRequest] = []
        self.scored: list[ScoreRequest] = []
        self.calls: list[str] = []
        self.dropped: list[int] = []
        """Seeds of answers that were given up."""
        self.versions: list[str] = []
        self.failed = False
        self.carrier: Carrier | None = None
        self._facts = {
            "architecture": architecture,
            "dtype": dtype,
            "max_model_len": room,
            "max_num_seqs": 64,
            "ranks": 1,
            "platform": "cpu",
        }
        self._error = self._lost = ""
        self._report = nothing()

    def facts(self) -> dict[str, Any]:
        return dict(self._facts)

    async def pulse(self) -> None:
        while self.stuck:
            await asyncio.sleep(0.01)

    async def answers(self, ask: GenerateRequest, patches: Mapping[str, np.ndarray]) -> list[Completion]:
        self.asks.append(ask)
        try:
            await asyncio.sleep(0.002)
            while not self.free.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.dropped += ask.seeds
            raise
        if self.fails or self.failed:
            self.failed = True
            raise RefusalError("ended", "the engine of this server has ended")
        out: list[Completion] = []
        for seed in ask.seeds:
            ids = made_up(ask.placed, patches, seed, ask.ends[0])
            out.append(self.alter(Completion(ids=ids, logprobs=(-0.5,) * len(ids), reason="stop", cached=3, prompt_ids=ask.placed.ids)))
        return out

    async def scores(self, ask: ScoreRequest, ids: Sequence[np.ndarray], patches: Mapping[str, np.ndarray]) -> list[bytes]:
        self.scored.append(ask)
        await asyncio.sleep(0.002)
        while not self.free.is_set():
            await asyncio.sleep(0.01)
        if self.fails or self.failed:
            self.failed = True
            raise RefusalError("ended", "the engine of this server has ended")
        return [made_up_scores(ask.placed, patches, of).tobytes() for of in ids]

    async def join(self, line: dict[str, Any]) -> None:
        self.calls.append("join")
        self._lost = ""
        try:
            self.carrier = await asyncio.to_thread(Carrier, Line(**line), 1, device=torch.device("cpu"))
        except CarrierError as error:
            self._lost = str(error)

    async def start(self) -> None:
        self.calls.append("start")

    async def update(self, step: dict[str, Any]) -> None:
        self.calls.append(step["step"])
        try:
            await asyncio.to_thread(self._update, step)
        except CarrierError as error:
            self._lost = str(error)
        except ValueError as error:
            self._error = self._error or str(error)

    def _update(self, step: dict[str, Any]) -> None:
        if step["step"] == "begin":
            self._error, self._report = "", nothing()
            self.receiver.vlmrl_begin(step["language_only"])
        elif step["step"] == "end":
            self._report = self.receiver.vlmrl_finish()
        else:
            carrier = self.carrier
            if carrier is None:
                raise CarrierError("this worker has met no trainer")

            def taken(size: int) -> torch.Tensor:
                row = torch.empty(size, dtype=torch.uint8)
                carrier.cast(row)
                return row

            tensors = cut(step["names"], step["dtypes"], step["shapes"], taken)
            if not self._error:
                self.receiver.vlmrl_load(tensors)

    async def reports(self) -> list[LoadReport]:
        return [{**self._report, "error": self._error, "lost": self._lost}]

    async def finish(self, version: str) -> None:
        self.calls.append("finish")
        self.versions.append(version)


Send = Callable[[dict[str, Any]], Awaitable[None]]
Fault = Callable[[Send, bytes], Awaitable[None]]
"""What a server does with a question in place of its reply, which it is told."""
_START: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}


async def cut_off(send: Send, reply: bytes) -> None:
    """Close the line in the middle of a reply."""
    await send(_START)
    await send({"type": "http.response.body", "body": reply[: len(reply) // 2], "more_body": True})
    raise ConnectionError("as a test wants it")


async def garbage(send: Send, reply: bytes) -> None:
    """A whole reply that is no message."""
    del reply
    await send(_START)
    await send({"type": "http.response.body", "body": b"hello"})


async def silence(send: Send, reply: bytes) -> None:
    """Begin a reply, and say nothing more for longer than the asker waits."""
    await send(_START)
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    await asyncio.sleep(1.5)
    await send({"type": "http.response.body", "body": reply})


async def other_weights(send: Send, reply: bytes) -> None:
    """Right answers that bear the version of other weights."""
    body = json.loads(reply)
    body["version"]["policy"] += 1
    await send(_START)
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@dataclass
class Served:
    """A server of a test, with its engine."""

    engine: Engine
    plugin: Plugin
    server: uvicorn.Server
    thread: threading.Thread
    address: str
    loop: asyncio.AbstractEventLoop
    faults: list[Fault] = field(default_factory=list[Fault])
    """For the next questions, one each."""
    posts: list[str] = field(default_factory=list[str])
    """Paths of what was posted."""
    replied: int = 0
    """Posts whose whole reply is out."""

    @property
    def desk(self) -> Desk:
        assert self.plugin.desk is not None
        return self.plugin.desk

    def kill(self) -> None:
        """Nobody listens there any more, and open connections are cut."""
        self.server.should_exit = self.server.force_exit = True
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(lambda: [one.transport.abort() for one in self.server.server_state.connections])  # pyright: ignore
        self.thread.join(10)
        if self.engine.carrier is not None:
            self.engine.carrier.leave()
            self.engine.carrier = None


class _Faulty:
    """In front of the routes: notes what is posted, and has the faults."""

    def __init__(self, app: Any, served: Served):
        self._app, self._served = app, served

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            self._served.posts.append(scope["path"])
            if self._served.faults and scope["path"] in (f"{PREFIX}generate", f"{PREFIX}score"):
                fault, reply = self._served.faults.pop(0), bytearray()

                async def kept(message: dict[str, Any]) -> None:
                    reply.extend(message.get("body", b""))

                await self._app(scope, receive, kept)
                await fault(send, bytes(reply))
                return
        await self._app(scope, receive, send)
        if scope["type"] == "http" and scope["method"] == "POST":
            self._served.replied += 1


@contextmanager
def serving(
    architecture: str, *, port: int = 0, token: str | None = None, teacher: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[Served]:
    """A server on this machine, for rollouts or of a teacher."""
    engine, plugin = Engine(architecture, **options), Plugin()

    async def vllms(request: Any) -> PlainTextResponse:
        del request
        return PlainTextResponse("of vLLM")

    app = Starlette()
    app.add_route("/v1/models", vllms, methods=["GET"])
    plugin.attach_router(app)
    begun: list[asyncio.AbstractEventLoop] = []
    served: list[Served] = []

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        await _Faulty(app, served[0])(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(outer, log_level="critical", lifespan="off", timeout_graceful_shutdown=1))
    import socket

    bound = socket.create_server(("127.0.0.1", port), backlog=256)

    async def run() -> None:
        plugin.open(engine, host="127.0.0.1", file=token, teacher=teacher)
        begun.append(asyncio.get_running_loop())
        await server.serve(sockets=[bound])

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not begun:
        assert time.monotonic() < until
        time.sleep(0.002)
    out = Served(engine, plugin, server, thread, f"127.0.0.1:{bound.getsockname()[1]}", begun[0])
    served.append(out)
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.002)
    try:
        yield out
    finally:
        if thread.is_alive():
            out.kill()
        bound.close()
