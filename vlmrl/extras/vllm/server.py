"""The HTTP front of a rollout server: who may ask, what is taken in, and how replies go out.

    GET  /v1/health            JSON: what runs here, and the version of its weights
    POST /v1/generate          a prompt with its seeds -> answers; or the media that the server does not have
    POST /v1/weights/begin     {load, language_only}
    POST /v1/weights/load      {load} and tensors under the trainer's names
    POST /v1/weights/finish    {load} -> where each of them went
    POST /v1/weights/sums      {load, names} -> sums of the bits of parameters
    POST /v1/weights/commit    {load, version}

A reply that takes time begins with a byte per second (`messages.BEAT`) for as long as the engine gets on; so whoever waits knows within
seconds when server or line are lost, however long an answer takes. When the asker goes, its answers are given up. Everything but `health`
goes to the engine's thread (`host.EngineLoop`). Without a token only this machine can ask, by its own names (`vlmrl.web`); elsewhere the
server does not listen without one. Requests under way and their bytes have bounds: who finds no room asks elsewhere or again.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import math
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

import numpy as np

from vlmrl.errors import ConfigError, VlmrlError
from vlmrl.extras.vllm.host import EngineLoop, RefusalError
from vlmrl.extras.vllm.messages import BEAT, PREFIX, TYPE, answers_message, ask_from, version_from
from vlmrl.extras.vllm.wire import Message, WireError, decode, encode
from vlmrl.web.guard import LOOPBACK, Room, foreign

MOST_BYTES = 2**35
"""Of a message, the largest of which is one tensor of the trainer, and of all that are under way."""
AT_ONCE = 4096
"""Most messages under way, each of which has a thread: what 64 ranks ask at most (`client.MOST_THREADS`)."""
MEDIA_BYTES = 2**32
"""Of patches that are kept, so that a medium is sent once."""
QUIET = 60.0
"""Seconds that a connection may stay silent while it sends."""
SECOND = 1.0
LOOK = 0.1
"""Seconds between two looks at whether it is to listen no more."""
_PIECE = 2**20


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


class RolloutServer(ThreadingHTTPServer):
    """Has its port from the beginning, and listens from `open` on. The loop is run elsewhere."""

    daemon_threads = True
    request_queue_size = 256
    loop: EngineLoop

    def __init__(self, address: tuple[str, int], *, token: str | None):
        """
        Raises:
            ConfigError: the address is not to be had, or others could ask without a token.
        """
        self.token = token
        self.room = Room(most_bytes=MOST_BYTES, at_once=AT_ONCE)
        self.media = MediaMemory()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler, bind_and_activate=False)
        try:
            self.server_bind()
        except OSError as error:
            self.server_close()
            raise ConfigError(f"--listen {address[0]}:{address[1]}: {error.strerror or error}") from error
        if token is None and not ipaddress.ip_address(str(self.server_address[0])).is_loopback:
            self.server_close()
            raise ConfigError(
                f"--listen {address[0]}: whoever reaches this port could change the weights; give --token-file, or listen on 127.0.0.1"
            )

    def server_bind(self) -> None:
        """Without asking a name server for this machine's name."""
        TCPServer.server_bind(self)

    @property
    def address(self) -> str:
        """Host and port, as a recipe names them."""
        host, port = self.server_address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"

    def open(self, loop: EngineLoop) -> None:
        """Listen, in threads."""
        self.loop = loop
        self.server_activate()
        threading.Thread(target=self.serve_forever, args=(LOOK,), name="listening", daemon=True).start()

    def shut(self) -> None:
        """Listen no more."""
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request. Connections are not used twice."""

    protocol_version = "HTTP/1.1"
    server_version = "vlmrl"
    sys_version = ""
    timeout = QUIET
    server: RolloutServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line per answer would hide what matters."""

    def do_GET(self) -> None:
        """`health`."""
        if not self._allowed():
            return
        if self.path != f"{PREFIX}health":
            self._plain(404, "no such address")
            return
        loop = self.server.loop
        held = None if loop.held is None else asdict(loop.held)
        told = {"vlmrl": 1, **loop.facts, "version": held, "alive": loop.alive, "answered": loop.answered}
        self._plain(200, json.dumps(told), "application/json")

    def do_POST(self) -> None:
        """Everything else."""
        if not self._allowed():
            return
        task = self._tasks().get(self.path)
        if task is None:
            self._plain(404, "no such address")
            return
        if self.headers.get("Content-Type") != TYPE:
            self._plain(415, f"messages are of type {TYPE}")
            return
        given = self.headers.get("Content-Length", "")
        if not (given.isascii() and given.isdigit() and len(given) < 20):
            self._plain(413, f"the length must be given, and be at most {self.server.room.most_bytes}")
            return
        size = int(given)
        refused = self.server.room.enter(size)
        if refused is not None:
            self._plain(refused.status, refused.reason)
            return
        try:
            data = self._read(size)
            if data is not None:
                self._reply(task(decode(data)))
        except WireError as error:
            self._plain(400, str(error))
        finally:
            self.server.room.leave(size)

    def _tasks(self) -> dict[str, Callable[[Message], Callable[[], list[memoryview]]]]:
        weights = f"{PREFIX}weights/"
        return {
            f"{PREFIX}generate": self._generate,
            f"{weights}begin": self._begin,
            f"{weights}load": self._load,
            f"{weights}finish": self._finish,
            f"{weights}sums": self._sums,
            f"{weights}commit": self._commit,
        }

    # ---- what is done --------------------------------------------------------------------------------------------------

    def _generate(self, message: Message) -> Callable[[], list[memoryview]]:
        ask = ask_from(message)
        keys = list(dict.fromkeys(medium.key for medium in ask.placed.media))
        patches = self.server.media.completed(ask.patches, keys)
        missing = [key for key in keys if key not in patches]
        if missing:
            return lambda: encode({"missing": missing})
        if any(len(patches[medium.key]) != math.prod(medium.grid) for medium in ask.placed.media):
            raise WireError("a medium does not have the patches of its grid")
        ticket = self.server.loop.answer(replace(ask, patches=patches))

        def made() -> list[memoryview]:
            try:
                while not ticket.done.wait(SECOND):
                    self._beat()
            except OSError:
                self.server.loop.abandon(ticket)
                raise
            if ticket.refusal is not None:
                raise ticket.refusal
            return answers_message(ask.version, [answer for answer in ticket.answers if answer is not None])

        return made

    def _begin(self, message: Message) -> Callable[[], list[memoryview]]:
        load, part = _text(message, "load"), message.body.get("language_only") is True
        return self._waited(self.server.loop.begin(load, language_only=part), lambda _: {})

    def _load(self, message: Message) -> Callable[[], list[memoryview]]:
        future = self.server.loop.load(_text(message, "load"), "vlmrl_load", list(message.tensors.items()))
        return self._waited(future, lambda _: {})

    def _finish(self, message: Message) -> Callable[[], list[memoryview]]:
        return self._waited(self.server.loop.load(_text(message, "load"), "vlmrl_finish"), lambda loaded: {"loaded": loaded})

    def _sums(self, message: Message) -> Callable[[], list[memoryview]]:
        names = message.body.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise WireError("names of parameters are expected")
        return self._waited(self.server.loop.load(_text(message, "load"), "vlmrl_sums", names), lambda sums: {"sums": sums})

    def _commit(self, message: Message) -> Callable[[], list[memoryview]]:
        version = version_from(message.body.get("version"))
        return self._waited(self.server.loop.commit(_text(message, "load"), version), lambda _: {})

    def _waited(self, future: Future[Any], told: Callable[[Any], dict[str, Any]]) -> Callable[[], list[memoryview]]:
        def made() -> list[memoryview]:
            while True:
                try:
                    return encode(told(future.result(timeout=SECOND)))
                except NotYet:
                    self._beat()
                except RefusalError:
                    raise
                except (ValueError, KeyError, VlmrlError) as error:
                    raise RefusalError("refused", str(error)[:500]) from error

        return made

    # ---- HTTP ----------------------------------------------------------------------------------------------------------

    def _allowed(self) -> bool:
        self.close_connection = True
        token = self.server.token
        names = (*LOOPBACK, str(self.server.server_address[0])) if token is None else None
        why = foreign({name.lower(): value for name, value in self.headers.items()}, names)
        if why is not None:
            self._plain(403, why)
            return False
        given = self.headers.get("Authorization", "")
        if token is None or hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return True
        self._plain(401, "the token is missing, or another one")
        return False

    def _read(self, size: int) -> bytearray | None:
        """The body; None when the asker has gone."""
        data = bytearray(size)
        view, place = memoryview(data), 0
        try:
            while place < size:
                got = self.rfile.readinto(view[place : place + _PIECE])  # pyright: ignore[reportAttributeAccessIssue]
                if not got:
                    return None
                place += got
        except OSError:
            return None
        return data

    def _plain(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        raw = text.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(raw)
        except OSError:  # the asker has gone
            return

    def _reply(self, made: Callable[[], list[memoryview]]) -> None:
        """Beats while it is being made, then the message."""
        try:
            self.send_response(200)
            self.send_header("Content-Type", TYPE)
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                pieces = made()
            except RefusalError as refusal:
                pieces = encode({"error": {"reason": refusal.reason, "detail": refusal.detail}})
            for piece in pieces:
                self._chunk(piece)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the asker has gone
            return

    def _beat(self) -> None:
        if self.server.loop.alive:
            self._chunk(memoryview(BEAT))
            self.wfile.flush()

    def _chunk(self, piece: memoryview) -> None:
        self.wfile.write(f"{piece.nbytes:x}\r\n".encode())
        self.wfile.write(piece)
        self.wfile.write(b"\r\n")


def _text(message: Message, name: str) -> str:
    value = message.body.get(name)
    if not isinstance(value, str) or not value:
        raise WireError(f"'{name}' is missing")
    return value
