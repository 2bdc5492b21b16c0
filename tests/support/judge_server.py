"""A judge on this machine that misbehaves on order: a scripted HTTP server for tests of the reward services.

    with JudgeServer(script=[status(500), status(429, {"Retry-After": "7"}), respond(score(0.5))]) as server:
        ... server.url ...; server.requests

A script is a list of acts; each request takes the next one, and when the script is used up `otherwise` answers. With `canary` canary
questions (those without an id) are answered apart from the script, so that scripts count real questions only.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from vlmrl.extras.judges.services import Services, session
from vlmrl.extras.judges.throttle import Timing

Json = dict[str, Any]
_IDENT = re.compile(r'"id": "([0-9a-f]{12})"')


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What goes over the wire. `status` 0: the connection is closed without a word."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    chunks: int = 1
    """In how many pieces the body is sent."""
    gate: threading.Event | None = None
    """Before each piece, wait for this (or the end of the server)."""


Act = Callable[[Json], Reply]
"""The body of a request -> what the server does."""


def prompt_of(body: Json) -> str:
    """All text of a chat request."""
    texts: list[str] = []
    for message in body.get("messages", []):
        content = message["content"]
        texts += [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]
    return "\n".join(texts)


def images_of(body: Json) -> list[str]:
    """Addresses of the images of a chat request."""
    return [
        part["image_url"]["url"]
        for message in body.get("messages", [])
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]


def ident_of(body: Json) -> str | None:
    """The id that a verdict has to carry; None for a canary."""
    if "inputs" in body:
        ident = body["inputs"][0]["id"]
        return None if ident == "canary" else ident
    found = _IDENT.findall(prompt_of(body))
    return found[0] if found else None


def chat(text: str, usage: tuple[int, int] = (100, 10)) -> Reply:
    """A chat completion."""
    message = {"role": "assistant", "content": text}
    value = {"choices": [{"index": 0, "message": message}], "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}}
    return Reply(body=json.dumps(value).encode())


def says(verdict: Callable[[Json], Json] | Json) -> Act:
    """A judge that gives this verdict, with the right id."""

    def act(body: Json) -> Reply:
        given = verdict(body) if callable(verdict) else verdict
        return chat(json.dumps({"id": ident_of(body), **given}))

    return act


def score(value: Any) -> Act:
    """A judge or reward model (by the form of the request) that gives this score."""

    def act(body: Json) -> Reply:
        if "inputs" in body:
            return Reply(body=json.dumps({"scores": [{"id": one["id"], "score": value} for one in body["inputs"]]}).encode())
        return chat(json.dumps({"id": ident_of(body), "score": value}))

    return act


def status(code: int, headers: dict[str, str] | None = None, body: bytes = b'{"error": "scripted"}') -> Act:
    return lambda _: Reply(status=code, body=body, headers=headers or {})


def raw(body: bytes, headers: dict[str, str] | None = None) -> Act:
    """200 with any body."""
    return lambda _: Reply(body=body, headers=headers or {})


def text(content: str) -> Act:
    """A judge that writes this."""
    return lambda _: chat(content)


def closes() -> Act:
    """The connection ends without a reply."""
    return lambda _: Reply(status=0)


def hangs(gate: threading.Event | None = None) -> Act:
    """Nothing comes until the gate opens or the server ends."""
    return lambda _: Reply(body=b"{}", gate=gate or threading.Event())


def html() -> Act:
    return raw(b"<!doctype html><html><body>Please log in</body></html>", {"Content-Type": "text/html"})


def gzip_bomb(size: int = 200 * 2**20) -> Act:
    """A reply that is small on the wire and `size` bytes unpacked."""
    packed = gzip.compress(b"0" * size, 9)
    return raw(packed, {"Content-Encoding": "gzip"})


def gzipped(act: Act) -> Act:
    """An honest reply, packed."""

    def packed(body: Json) -> Reply:
        reply = act(body)
        return Reply(status=reply.status, body=gzip.compress(reply.body), headers={**reply.headers, "Content-Encoding": "gzip"})

    return packed


def megabytes(count: int = 10) -> Act:
    return raw(b'{"choices": "' + b"x" * (count * 2**20) + b'"}')


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True
    owner: JudgeServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what is tested, not an error of the server."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self._handle()

    def do_GET(self) -> None:
        self._handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on the console."""

    def _handle(self) -> None:
        assert isinstance(self.server, _Server)
        owner = self.server.owner
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        reply = owner.next_reply(json.loads(data) if data else {}, dict(self.headers.items()), self.path)
        if reply.status == 0:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        size = max(1, -(-len(reply.body) // reply.chunks))
        pieces = [reply.body[i : i + size] for i in range(0, len(reply.body), size)] or [b""]
        for number, piece in enumerate(pieces):
            if reply.gate is not None:
                while not reply.gate.wait(0.01) and not owner.ending.is_set():
                    pass
            if number == 0:
                self._head(reply)
            self.wfile.write(piece)

    def _head(self, reply: Reply) -> None:
        self.send_response(reply.status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(reply.body)), **reply.headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


class JudgeServer:
    """A scripted server on a free port of 127.0.0.1, or on a port of all networks of its host.

    Attributes:
        requests: (body, headers, path) of every request, canaries included, in the order of arrival.
        answered: ids of real questions in the order of arrival.
    """

    def __init__(self, script: Sequence[Act] = (), *, otherwise: Act | None = None, canary: Act | None = None, port: int = 0):
        self.script = list(script)
        self.otherwise = otherwise or score(1.0)
        self.canary = canary
        self.requests: list[tuple[Json, dict[str, str], str]] = []
        self.answered: list[str] = []
        self.ending = threading.Event()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._port, self._host = port, "0.0.0.0" if port else "127.0.0.1"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def calls(self) -> int:
        """Real questions so far; canaries are not among them."""
        with self._lock:
            return len(self.answered)

    def start(self) -> None:
        """Listen, after `stop` on the same port as before."""
        self.ending.clear()
        self._server = _Server((self._host, self._port), _Handler)
        self._server.owner = self
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections; what is in progress ends."""
        self.ending.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def next_reply(self, body: Json, headers: dict[str, str], path: str) -> Reply:
        """Take the next act of the script for a request."""
        ident = ident_of(body)
        with self._lock:
            self.requests.append((body, headers, path))
            if ident is None and self.canary is not None:
                return self.canary(body)
            if ident is not None:
                self.answered.append(ident)
            act = self.script.pop(0) if self.script else self.otherwise
        return act(body)

    def __enter__(self) -> JudgeServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class FakeTime:
    """A clock that only sleeping moves. `slept` holds every pause, in slices as they were slept."""

    def __init__(self, *, jitter: float = 1.0, stop: Callable[[], bool] = lambda: False):
        self.seconds = 1000.0
        self.slept: list[float] = []
        self._jitter = jitter
        self._stop = stop
        self._lock = threading.Lock()

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds
            self.slept.append(seconds)

    def timing(self) -> Timing:
        """With a wall clock that begins at the epoch."""
        return Timing(
            now=lambda: self.seconds,
            wall=lambda: self.seconds - 1000.0,
            sleep=self.sleep,
            jitter=lambda name, attempt: self._jitter,
            stop=self._stop,
        )


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A scripted server with the services of a session that asks it."""

    server: JudgeServer
    services: Services
    time: FakeTime
    endpoint: dict[str, Any]


@contextmanager
def serving(
    *script: Act, otherwise: Act | None = None, canary: Act | None = None, folder: Path | None = None, **options: Any
) -> Iterator[Serving]:
    """A server and a session whose time is fake; `options` are those of the endpoint (one request at once by default)."""
    time = FakeTime()
    with JudgeServer(script, otherwise=otherwise, canary=canary) as server, session(Services(folder, timing=time.timing())) as services:
        endpoint = {"url": server.url, "model": "judge", "concurrency": 1, "timeout": 5.0, **options}
        yield Serving(server=server, services=services, time=time, endpoint=endpoint)
