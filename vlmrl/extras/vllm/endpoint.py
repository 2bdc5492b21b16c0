"""The routes that a stock vLLM server gets from us (`vllm.endpoint_plugins`): who may ask, what is taken in, and how replies go out.

    GET  /vlmrl/health           what runs here, and the version of its weights
    POST /vlmrl/generate         a prompt with its seeds -> answers; or the media that the server does not have
    POST /vlmrl/score            a prompt with answers -> log-probs of their ids under a teacher; or the media that the server does not have
    POST /vlmrl/weights/begin    {load, language_only, line, join}; `join`: where to meet the trainer, where they have not met
    POST /vlmrl/weights/part     {load, names, dtypes, shapes}, and the tensors over the group
    POST /vlmrl/weights/end      {load} -> a report of each worker
    POST /vlmrl/weights/commit   {load, version}

vLLM's own route for prompts of ids has no word for placeholders with gaps, as a video of Qwen3-VL has, and its routes for weights are open
to whoever reaches them. So neither is used, and the server is not started in vLLM's development mode. The door is before all routes, vLLM's
too: without a token only this machine may ask, by its own names (`vlmrl.web`); elsewhere the server does not start without one.

A reply that takes time begins with a byte per second (`wire.BEAT`) for as long as the engine gets on; so whoever waits knows within seconds
when server or line are lost, however long an answer takes. When the asker goes, its answers are given up. Whatever is open when weights
begin is given up as an answer of another version, and until they are in place nothing is answered.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from vlmrl.config.addresses import is_loopback
from vlmrl.errors import ConfigError, EngineError
from vlmrl.extras.vllm.argued import ServedInputs
from vlmrl.extras.vllm.hosted import VllmAsync
from vlmrl.extras.vllm.inputs import Placed, Version
from vlmrl.extras.vllm.secret import read_token
from vlmrl.extras.vllm.wire import (
    BEAT,
    PREFIX,
    TYPE,
    RefusalError,
    WireError,
    answers_message,
    ask_from,
    body_from,
    body_message,
    score_from,
    scores_message,
    version_from,
)
from vlmrl.run.ui import Ui
from vlmrl.web.guard import LOOPBACK, Room, foreign, headers_of

NAME = "vlmrl"
"""Of the plug-in, as the variable VLLM_PLUGINS calls it."""
TOKEN_FILE = "VLMRL_TOKEN_FILE"
"""Variable with the file of the token that askers must have."""
TEACHER = "VLMRL_TEACHER"
"""Variable that is set where the weights are a teacher's, which no trainer replaces."""
PROCESSOR = "VLMRL_PROCESSOR"
"""Variable that is set where media come as the family's own processor makes them: what `argued.ServedInputs` is told of it, as JSON."""
ROUTES = "VLMRL_ROUTES"
"""Variable that is set where answers bring the experts that routers took."""
MOST_BYTES = 2**33
"""Of a message, the largest of which is a prompt with its videos, and of all that are under way."""
AT_ONCE = 4096
"""Most messages under way: what 64 ranks ask at most (`client.MOST_THREADS`)."""
MEDIA_BYTES = 2**32
"""Of patches that are kept, so that a medium is sent once."""
WITH_PIXELS = ("generate", "score")
"""Routes whose messages are no JSON alone."""
SECOND = 1.0
PULSE = 5.0
"""Seconds between two questions to the engine whether it gets on."""
STUCK = 300.0
"""Seconds without an answer to that after which the server says no more that it lives."""


class MediaMemory:
    """Patches by the key of their medium, least recently used first out."""

    def __init__(self, most: int = MEDIA_BYTES):
        self._most, self._size = most, 0
        self._held: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def completed(self, given: Mapping[str, np.ndarray], keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Patches of these keys, from what was sent now or before; those that are not known are left out."""
        with self._lock:
            for key, patches in given.items():
                if key not in self._held:
                    self._held[key] = patches.copy()  # not a view that keeps the whole message
                    self._size += patches.nbytes
            out: dict[str, np.ndarray] = {}
            for key in keys:
                if key in self._held:
                    self._held.move_to_end(key)
                    out[key] = self._held[key]
            while self._size > self._most:
                self._size -= self._held.popitem(last=False)[1].nbytes
            return out


class Desk:
    """What is asked of one engine, in its server's event loop."""

    def __init__(self, engine: VllmAsync, teacher: Mapping[str, Any] | None = None):
        """`teacher`: what the server says of a model whose weights stay (`identity.identity_of`); None: they come from a trainer."""
        self.engine, self.teacher = engine, teacher
        self._argued = engine.facts().get("processor") is not None
        self.held: Version | None = None
        """Version of the weights in the engine; None while there are none, or some of two versions."""
        self.answered = 0
        self.media = MediaMemory()
        self.room = Room(most_bytes=MOST_BYTES, at_once=AT_ONCE)
        self._open: set[asyncio.Future[Any]] = set()
        self._load = ""
        """Name of the weights that are coming in; empty where none are."""
        self._line = ""
        """Name of the group in which the workers have met a trainer."""
        self._turn = asyncio.Lock()
        self._moved = time.monotonic()
        self._pulse: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the engine gets on."""
        return not self.engine.failed and time.monotonic() - self._moved < STUCK

    def begin_pulse(self) -> None:
        """Ask the engine now and then whether it gets on, for as long as the server runs."""
        self._pulse = asyncio.create_task(self._beating())

    async def _beating(self) -> None:
        while not self.engine.failed:
            with suppress(RefusalError):  # it is not well, then: `alive` says so once that has lasted
                await self.engine.pulse()
                self._moved = time.monotonic()
            await asyncio.sleep(PULSE)

    def health(self) -> dict[str, Any]:
        """What runs here."""
        held = None if self.held is None else asdict(self.held)
        return {"vlmrl": 2, **self.engine.facts(), "version": held, "alive": self.alive, "answered": self.answered, "teacher": self.teacher}

    async def generate(self, data: bytes) -> dict[str, Any]:
        """Answers, or the media that are not known here.

        Raises:
            RefusalError: other weights are held, or come before the answers; or the engine does not take the prompt.
            WireError: it is no question.
        """
        ask, given = ask_from(data)
        patches, missing = self._seen(ask.placed, given)
        if missing:
            return {"missing": missing}
        if self.held is None or ask.version != self.held:
            raise RefusalError("version", f"asked for weights {ask.version}, and this server holds {self.held}")
        work = asyncio.ensure_future(self.engine.answers(ask, patches))
        self._open.add(work)
        try:
            answers = await work
        except asyncio.CancelledError:
            if self.held != ask.version:
                raise RefusalError("version", "other weights came before the answers") from None
            raise
        finally:
            self._open.discard(work)
        self.answered += len(answers)
        return answers_message(ask.version, answers)

    async def score(self, data: bytes) -> dict[str, Any]:
        """A teacher's log-probs of given ids, or the media that are not known here.

        Raises:
            RefusalError: this is no teacher's server, or another teacher's; or the engine does not take the prompt.
            WireError: it is no question.
        """
        ask, ids, given = score_from(data)
        patches, missing = self._seen(ask.placed, given)
        if missing:
            return {"missing": missing}
        own = None if self.teacher is None else self.teacher["fingerprint"]
        if own != ask.teacher:
            raise RefusalError("teacher", f"asked for the teacher {ask.teacher}, and this server has {own or 'none'}")
        scores = await self.engine.scores(ask, ids, patches)
        self.answered += len(scores)
        return scores_message(ask, scores)

    def _seen(self, placed: Placed, given: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
        """Patches of a prompt's media, from what was sent now or before, and the keys of those that are not known."""
        keys = list(dict.fromkeys(medium.key for medium in placed.media))
        patches = self.media.completed(given, keys)
        missing = [key for key in keys if key not in patches]
        for medium in placed.media if not missing else ():
            of = patches[medium.key]
            if (of.ndim == 1) != self._argued or not (self._argued or len(of) == math.prod(medium.grid)):
                raise WireError("a medium does not have the patches of its grid, or is not what this model's processor makes")
        return patches, missing

    # ---- weights -------------------------------------------------------------------------------------------------------

    async def begin(self, body: dict[str, Any]) -> dict[str, Any]:
        """Weights are coming, under a name, over a group that has met or is to meet.

        Raises:
            RefusalError: the workers have not met this trainer, or the weights are a teacher's.
            WireError: names are missing.
        """
        load, line, join = _text(body, "load"), _text(body, "line"), body.get("join")
        if self.teacher is not None:
            raise RefusalError("teacher", "the weights of this server are a teacher's, and stay")
        async with self._turn:
            self.held = None
            for work in list(self._open):
                work.cancel()
            if self._load:  # whoever sent these has gone; vLLM must end one update before the next
                await self._close()
            if join is None and line != self._line:
                raise RefusalError("line", "this server has met no trainer since it began, or another one")
            if join is not None:
                self._line = ""
                await self.engine.join(dict(join))
                lost = [report["lost"] for report in await self.engine.reports() if report["lost"]]
                if lost:
                    raise RefusalError("line", lost[0])
                self._line = line
            self._load = load
            await self.engine.start()
            await self.engine.update({"step": "begin", "language_only": body.get("language_only") is True})
        return {}

    async def part(self, body: dict[str, Any]) -> dict[str, Any]:
        """A bucket of them is on its way.

        Raises:
            RefusalError: it belongs to weights of before.
        """
        load = _text(body, "load")
        async with self._turn:
            self._require(load)
            await self.engine.update({"step": "part", **{name: body.get(name) for name in ("names", "dtypes", "shapes")}})
        return {}

    async def end(self, body: dict[str, Any]) -> dict[str, Any]:
        """All of them have been sent: what has become of them, worker by worker.

        Raises:
            RefusalError: it belongs to weights of before.
        """
        load = _text(body, "load")
        async with self._turn:
            self._require(load)
            await self.engine.update({"step": "end"})
            return {"reports": await self.engine.reports()}

    async def commit(self, body: dict[str, Any]) -> dict[str, Any]:
        """The trainer has found that all of them are there: they may be used.

        Raises:
            RefusalError: it belongs to weights of before.
            WireError: no version is given.
        """
        load, version = _text(body, "load"), version_from(body.get("version"))
        async with self._turn:
            self._require(load)
            await self.engine.finish(version.salt)
            self.held, self._load = version, ""
        return {}

    async def _close(self) -> None:
        """End an update of which nothing will be heard any more: its weights are of no version."""
        self._load = ""
        for step in (self.engine.update({"step": "end"}), self.engine.finish("none")):
            with suppress(RefusalError):  # it had not begun, or has ended: its asker went in between. `start` says what is not well
                await step

    def _require(self, load: str) -> None:
        if load != self._load:
            raise RefusalError("load", "other weights are coming in, or none; another trainer uses this server")


class Plugin:
    """What vLLM's server loads."""

    name = NAME
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self.desk: Desk | None = None
        self.token: str | None = None
        self.names: tuple[str, ...] = LOOPBACK

    def attach_router(self, app: Any) -> None:
        """Put the door before all routes, and ours beside vLLM's."""
        app.add_middleware(Door, plugin=self)
        app.add_route(f"{PREFIX}health", self._health, methods=["GET"])
        for name in ("generate", "score", "weights/begin", "weights/part", "weights/end", "weights/commit"):
            app.add_route(PREFIX + name, self._route(name.rpartition("/")[2]), methods=["POST"])

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Begin to answer, once vLLM is there.

        Raises:
            ConfigError: others could ask without a token, or several engines would be behind one address.
        """
        del state
        given, config, argued, teacher = os.environ.get(PROCESSOR), engine_client.vllm_config.model_config, None, None
        if given is not None:
            argued = await asyncio.to_thread(lambda: ServedInputs(config.model, config, **json.loads(given)))
        engine = VllmAsync(engine_client, argued)
        engine.fail_with(EngineError.exit_code)
        if os.environ.get(ROUTES):
            await engine.route()
        if os.environ.get(TEACHER):
            from vlmrl.extras.vllm.identity import identity_of

            teacher = await asyncio.to_thread(identity_of, config.model, engine.facts()["dtype"])
            await engine.watch()
        self.open(engine, host=args.host or "", file=os.environ.get(TOKEN_FILE), teacher=teacher)
        where = where_of(args.host or "0.0.0.0", args.port)
        said = "rollout server on {}: it answers once a run has sent it weights" if teacher is None else "teacher server on {}: it scores"
        Ui().print_exactly([said.format(where)])

    def open(self, engine: VllmAsync, *, host: str, file: str | None, teacher: Mapping[str, Any] | None = None) -> None:
        """Begin to answer. `teacher`: of the `Desk`.

        Raises:
            ConfigError: others could ask without a token.
        """
        self.token = read_token(Path(file), TOKEN_FILE) if file else None
        if self.token is None and not is_loopback(host):
            raise ConfigError(
                f"--host {host or '(every address)'}: whoever reaches this port could change the weights; give a token "
                f"(vlmrl serve --token-file, or {TOKEN_FILE}), or listen on 127.0.0.1"
            )
        self.names = (*LOOPBACK, host)
        self.desk = Desk(engine, teacher)
        self.desk.begin_pulse()

    def refusal(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Why a request to any route is not answered; None if it is."""
        if self.desk is None:
            return 503, "vLLM is not there yet"
        why = foreign(headers, self.names if self.token is None else None)
        if why is not None:
            return 403, why
        given = headers.get("authorization", "")
        if self.token is None or hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            return None
        return 401, "the token is missing, or another one"

    async def _health(self, request: Request) -> Response:
        del request
        assert self.desk is not None, "the door is shut"
        return Response(body_message(self.desk.health()), media_type="application/json")

    def _route(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            desk = self.desk
            assert desk is not None, "the door is shut"
            if request.headers.get("content-type") != TYPE:
                return PlainTextResponse(f"messages are of type {TYPE}", 415)
            given = request.headers.get("content-length", "")
            if not (given.isascii() and given.isdigit() and len(given) < 20):
                return PlainTextResponse(f"the length must be given, and be at most {desk.room.most_bytes}", 413)
            size = int(given)
            refused = desk.room.enter(size)
            if refused is not None:
                return PlainTextResponse(refused.reason, refused.status)
            try:
                data = await request.body()
                work = getattr(desk, name)(data if name in WITH_PIXELS else body_from(data))
            except BaseException as error:
                desk.room.leave(size)
                if isinstance(error, WireError):
                    return PlainTextResponse(str(error), 400)
                raise
            return StreamingResponse(_told(desk, request, work, size), media_type=TYPE)

        return answer


async def _told(desk: Desk, request: Request, work: Coroutine[Any, Any, dict[str, Any]], size: int) -> AsyncIterator[bytes]:
    """Beats while a reply is being made, then the reply."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=SECOND))[0]:
            if await request.is_disconnected():
                return
            if desk.alive:
                yield BEAT
        try:
            body = task.result()
        except RefusalError as refusal:
            body = {"error": {"reason": refusal.reason, "detail": refusal.detail}}
        except WireError as error:
            body = {"error": {"reason": "refused", "detail": str(error)}}
        yield body_message(body)
    finally:
        task.cancel()
        desk.room.leave(size)


class Door:
    """In front of every route of the server, vLLM's own included."""

    def __init__(self, app: Any, plugin: Plugin):
        self._app, self._plugin = app, plugin

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refused = None if scope["type"] == "lifespan" else self._plugin.refusal(headers_of(scope))
        if refused is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse(refused[1], refused[0])(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def where_of(host: str, port: int) -> str:
    """Host and port, as a recipe names them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise WireError(f"'{name}' is missing")
    return value
