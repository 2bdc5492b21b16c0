"""The HTTP side of `vlmrl serve`: routes and errors in OpenAI's form, behind the guard (`vlmrl.web`). Needs the extra `serve`."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Protocol

from vlmrl.errors import ConfigError, VlmrlError
from vlmrl.extras.serve.answering import Answering, Item, Said
from vlmrl.extras.serve.protocol import Chat, Refused, completion, read_chat
from vlmrl.extras.serve.stream import Events, Piece
from vlmrl.web.guard import LOOPBACK, MAX_BODY, App, Guard, Refusal, Scope, read_json

try:
    from starlette.applications import Starlette  # pyright: ignore[reportMissingImports]
    from starlette.concurrency import run_in_threadpool  # pyright: ignore[reportMissingImports]
    from starlette.exceptions import HTTPException  # pyright: ignore[reportMissingImports]
    from starlette.requests import Request  # pyright: ignore[reportMissingImports]
    from starlette.responses import JSONResponse, Response, StreamingResponse  # pyright: ignore[reportMissingImports]
    from starlette.routing import Route  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    raise ConfigError(f"vlmrl serve needs {error.name}: pip install 'vlmrl[serve]'; --engine vllm --print needs nothing") from error

GONE = 499
"""Status for a client that did not wait for its answer; nobody reads it."""


class Answerer(Protocol):
    """What the routes need of `model.ServedCheckpoint`."""

    def cards(self) -> list[dict[str, Any]]: ...

    def ask(self, chat: Chat) -> Answering: ...


def application(model: Answerer, *, key: str | None, max_body: int = MAX_BODY) -> App:
    """The routes, guarded.

    Args:
        key: that requests must have as their bearer token. Without one, requests have to name this machine as their host: a page in a
            browser that reaches loopback under another name is refused.
        max_body: bytes of a request, and of all that are under way.
    """

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": model.cards()})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        found = [card for card in model.cards() if card["id"] == name]
        if not found:
            raise Refused(f"no model '{name}'", status=404, param="model", code="model_not_found")
        return JSONResponse(found[0])

    async def chat(request: Request) -> Response:
        asked = read_chat(await _json(request))
        name, created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        answering = await run_in_threadpool(model.ask, asked)
        items = _heard(request, answering)
        first = await anext(items, None)
        if first is not None and asked.stream:
            told = _streamed(first, items, answering, Events(asked, name, created))
            return StreamingResponse(told, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        await items.aclose()
        if first is None:
            return Response(status_code=GONE)
        assert isinstance(first, Said)
        return JSONResponse(completion(asked, name, created, answering.prompt_tokens, first.choices))

    def allows(scope: Scope, headers: Mapping[str, str]) -> bool:
        given = headers.get("authorization", "").removeprefix("Bearer ")
        return key is None or hmac.compare_digest(given.encode(), key.encode())

    app = Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", one_model),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        exception_handlers={Refused: _refused, HTTPException: _no_route, VlmrlError: _failed, RuntimeError: _failed, Exception: _failed},
    )
    hosts = LOOPBACK if key is None else None
    return Guard(app, allows=allows, shows=_shown, hosts=hosts, methods=("GET", "HEAD", "POST"), max_body=max_body)


def _shown(refusal: Refusal) -> tuple[str, bytes]:
    code = "invalid_api_key" if refusal.status == 401 else None
    return "application/json", json.dumps(Refused(refusal.reason, status=refusal.status, code=code).body()).encode()


async def _heard(request: Request, answering: Answering) -> AsyncGenerator[Piece | Said, None]:
    """What comes of an answer until it is whole. A client that leaves ends it: then nothing more comes.

    Raises:
        Exception: whatever the model failed with.
    """
    loop, heard = asyncio.get_running_loop(), asyncio.Queue[Item | None]()

    async def leaves() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        heard.put_nowait(None)

    gone = asyncio.ensure_future(leaves())
    answering.follow(lambda item: loop.call_soon_threadsafe(heard.put_nowait, item) and None)
    try:
        while (item := await heard.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
            if isinstance(item, Said):
                return
    finally:
        answering.cancel()
        gone.cancel()


async def _streamed(
    first: Piece | Said, items: AsyncGenerator[Piece | Said, None], answering: Answering, events: Events
) -> AsyncIterator[str]:
    """The events of a reply that has begun. A fault of the model is the last one of them: the status was sent."""

    def told(item: Piece | Said) -> str:
        if isinstance(item, Said):
            return events.closing(answering.prompt_tokens, item.choices)
        return events.piece(answering.choices_of(item.place), item, answering.tokens(item.ids))

    try:
        yield events.opening() + told(first)
        async for item in items:
            yield told(item)
    except (VlmrlError, RuntimeError) as error:
        yield events.failed(error)
    finally:
        await items.aclose()


async def _json(request: Request) -> Any:
    """
    Raises:
        Refused: the body is not JSON, or nested too deeply.
    """
    try:
        return read_json(await request.body())
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from error


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return JSONResponse(error.body(), status_code=error.status)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = f"{request.method} {request.url.path}: {error.detail}; there are GET /v1/models and POST /v1/chat/completions"
    return JSONResponse(Refused(told, status=error.status_code).body(), status_code=error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse(Refused(f"{type(error).__name__}: {error}", status=500).body(), status_code=500)
