"""Decides what a web application of ours is asked: a request that is refused reaches neither its routes nor the disk.

Refused is who names another host than this machine (DNS rebinding), comes from a page of another origin (any page can post to loopback,
without a preflight if it says `text/plain`), lacks the secret, asks by another method or with another content than JSON, is too large, or
comes while too much is under way. Bodies are read here, within bounds that hold for all requests together.

`Guard` does all of it in front of an ASGI application. The routes for rollouts, which stand in vLLM's application and take
pixels, use the parts: `foreign`, `Room` and `read_json`.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of this machine."""
MAX_BODY = 256 * 2**20
"""Most bytes of a request, and of all requests that are under way."""
AT_ONCE = 256
"""Most requests under way."""
MAX_DEPTH = 32
MAX_VALUES = 2**20
"""Of JSON: brackets within brackets, and values."""
_HALF = re.compile(r"[\ud800-\udfff]")
_CLIMBS = (b"..", b"%2e", b"%5c", b"\\", b"%00", b"//")


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    reason: str
    """For people."""


def foreign(headers: Mapping[str, str], hosts: Sequence[str] | None) -> str | None:
    """Why a request does not come from here, by its headers (names in lower case); None if it does.

    Args:
        hosts: names that a request may give its host; None for any.
    """
    host = headers.get("host", "")
    name, _, port = host.rpartition(":")
    name = (name if port.isdigit() else host).strip("[]").lower()
    if hosts is not None and name not in hosts:
        return "it names another host"
    if headers.get("origin", f"http://{host}") not in (f"http://{host}", f"https://{host}"):
        return "it comes from a page of another origin"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "it comes from a page of another site"
    return None


class Room:
    """What may be under way: requests, and the bytes of their bodies together. Threads may use it at the same time."""

    def __init__(self, *, most_bytes: int = MAX_BODY, at_once: int = AT_ONCE):
        self.most_bytes, self._at_once = most_bytes, at_once
        self._busy = self._held = 0
        self._lock = threading.Lock()

    def enter(self, size: int) -> Refusal | None:
        """Take a place, and room for a body that says that it has `size` bytes; why there is none. Who has a place leaves it."""
        if size > self.most_bytes:
            return self.too_large()
        with self._lock:
            if self._busy >= self._at_once or self._held + size > self.most_bytes:
                return self._full()
            self._busy += 1
            self._held += size
        return None

    def grow(self, more: int) -> Refusal | None:
        """A body has more bytes than it said. They are counted; why they are too many."""
        with self._lock:
            self._held += more
            return self._full() if self._held > self.most_bytes else None

    def leave(self, size: int) -> None:
        """Give back a place with all bytes of its body."""
        with self._lock:
            self._busy -= 1
            self._held -= size

    def too_large(self) -> Refusal:
        """Of one request."""
        return Refusal(413, f"the request has more than {self.most_bytes} bytes")

    def _full(self) -> Refusal:
        return Refusal(503, f"{self._busy} requests of {self._held} bytes are under way; ask again later")


class Guard:
    """An ASGI application in front of another."""

    def __init__(
        self,
        app: App,
        *,
        allows: Callable[[Scope, Mapping[str, str]], bool],
        shows: Callable[[Refusal], tuple[str, bytes]],
        hosts: Sequence[str] | None = LOOPBACK,
        methods: Sequence[str] = ("GET", "HEAD"),
        headers: Mapping[str, str] | None = None,
        max_body: int = MAX_BODY,
        at_once: int = AT_ONCE,
    ):
        """
        Args:
            allows: whether a request (scope; headers by names in lower case) has the secret.
            shows: content type and body that say a refusal.
            hosts: names that a request may give its host; None for any.
            headers: put on every answer.
            max_body: bytes of the body of a request, and of all that are under way.
            at_once: requests under way.
        """
        self._app, self._allows, self._shows = app, allows, shows
        self._hosts, self._methods, self._headers = hosts, methods, dict(headers or {})
        self._room = Room(most_bytes=max_body, at_once=at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # nothing here speaks it
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in self._headers.items()]
                names = {name for name, _ in own}
                message["headers"] = [pair for pair in message.get("headers", []) if pair[0] not in names] + own
            await send(message)

        said = _length(headers_of(scope)) if scope["method"] == "POST" else 0
        refused = self.refusal(scope) or self._room.enter(said)
        if refused is not None:
            await self._refuse(refused, sealed)
            return
        body = _Body(said)
        try:
            refused = await self._read(scope, receive, body)
            if refused is not None:
                await self._refuse(refused, sealed)
            elif not body.left:
                await self._app(scope, body.before(receive), sealed)
        finally:
            self._room.leave(body.size)

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why a request is not answered, whatever else is under way and before its body is read; None if it is."""
        headers = headers_of(scope)
        why = foreign(headers, self._hosts)
        if why is not None:
            return Refusal(403, why)
        raw = (scope.get("raw_path") or scope["path"].encode()).lower()
        if any(bad in raw for bad in _CLIMBS):
            return Refusal(403, "its path climbs")
        if not self._allows(scope, headers):
            return Refusal(401, "no key, or another than this server's")
        if scope["method"] not in self._methods:
            return Refusal(405, f"only {', '.join(self._methods)} are answered")
        if scope["method"] == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return Refusal(415, "the content type has to be application/json")
        return self._room.too_large() if _length(headers) > self._room.most_bytes else None

    async def _read(self, scope: Scope, receive: Receive, body: _Body) -> Refusal | None:
        """Read the body of a POST; why it is refused."""
        if scope["method"] != "POST":
            return None
        read, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                body.left = True
                return None
            part, more = message.get("body", b""), message.get("more_body", False)
            body.parts.append(part)
            read += len(part)
            unsaid = max(0, read - body.size)
            body.size += unsaid
            full = self._room.grow(unsaid)
            if read > self._room.most_bytes:
                return self._room.too_large()
            if full is not None:
                return full
        return None

    async def _refuse(self, refused: Refusal, send: Send) -> None:
        kind, body = self._shows(refused)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        if refused.status == 503:
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _Body:
    """What was read of a request."""

    def __init__(self, size: int) -> None:
        self.parts: list[bytes] = []
        self.size = size
        """Bytes that it has, or has said that it will have."""
        self.left = False
        """Its client has left."""

    def before(self, receive: Receive) -> Receive:
        """Give the body first, and then what comes (that the client leaves)."""

        async def replayed() -> Message:
            if not self.parts:
                return await receive()
            whole = b"".join(self.parts)
            self.parts.clear()
            return {"type": "http.request", "body": whole, "more_body": False}

        return replayed


def headers_of(scope: Scope) -> dict[str, str]:
    """Headers of a request by their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _length(headers: Mapping[str, str]) -> int:
    """Bytes that a request says its body has; 0 where it does not."""
    given = headers.get("content-length", "")
    return int(given) if given.isdecimal() and len(given) < 20 else 0


def read_json(data: bytes) -> Any:
    """The value of a body.

    Raises:
        ValueError: not JSON (which has no NaN), nested deeper than `MAX_DEPTH`, with more than `MAX_VALUES` values, or with half a
            character in a text.
    """
    if sum(data.count(mark) for mark in (b",", b":", b"[", b"{")) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES} values")  # counted first: an empty list is 2 bytes here, and 56 in memory
    try:
        value = json.loads(data, parse_constant=_no_json)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [part for one in level for part in _parts(one)]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {MAX_DEPTH}")


def _no_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parts(value: Any) -> Iterable[Any]:
    """
    Raises:
        ValueError: a text that no encoding can hold; tokenizers and file systems fail at it.
    """
    if isinstance(value, str) and not value.isascii() and _HALF.search(value):
        raise ValueError("a text has half of a character that JSON writes in two")
    if isinstance(value, dict):
        return itertools.chain(value, value.values())
    return value if isinstance(value, list) else ()
