"""A server that speaks as those of OpenEnv do, for a corridor: messages as its source declares them, WebSocket by the standard library."""

from __future__ import annotations

import base64
import hashlib
import json
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from vlmrl.extras.toy.picture import png

LENGTH = 4


class Session:
    """One episode after the other. `reset(at=...)` begins there."""

    def __init__(self) -> None:
        self.at = self.steps = 0

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        data = message["data"]
        if message["type"] == "reset":
            self.at, self.steps = int(data.get("at", data["seed"] % (LENGTH - 1))), 0
            return self.seen(None)
        if set(data) - {"move", "metadata"} or data.get("move") not in ("left", "right", "crash"):
            return {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": []}}
        if data["move"] == "crash":
            return {"type": "error", "data": {"message": "the wall fell", "code": "EXECUTION_ERROR"}}
        self.at = min(LENGTH - 1, max(0, self.at + (1 if data["move"] == "right" else -1)))
        self.steps += 1
        return self.seen(float(self.at == LENGTH - 1))

    def seen(self, reward: float | None) -> dict[str, Any]:
        drawn = np.zeros((56, 56, 3), np.uint8)
        drawn[:, self.at * 14 : self.at * 14 + 14] = (30, 30, 200)
        metadata = {"step": self.steps}
        observation = {
            "said": "Go right.",
            "at": self.at,
            "picture": base64.b64encode(png(drawn)).decode(),
            "none": None,
            "metadata": metadata,
        }
        data = {"observation": observation, "reward": reward, "done": self.at == LENGTH - 1, "metadata": metadata}
        return {"type": "observation", "data": data}


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        first = self.rfile.readline().decode().split(" ")
        fields = {}
        while (line := self.rfile.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
        if first[1] == "/metadata":
            body = json.dumps({"name": "corridor", "version": "0.1"}).encode()
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        elif first[1] == "/ws":
            key = fields["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest())
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: %s\r\n\r\n" % accept)
            self._serve()
        else:
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _serve(self) -> None:
        session = Session()
        while (text := self._message()) is not None:
            told = json.dumps(session.answer(json.loads(text))).encode()
            half = len(told) // 2
            self._send(9, b"still there?")  # a ping, which is answered; then the message in two frames
            self._send(1, told[:half], last=False)
            self._send(0, told[half:])

    def _message(self) -> str | None:
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return None
            size = head[1] & 0x7F
            assert head[1] & 0x80, "a client masks what it sends"
            if size >= 126:
                size = int.from_bytes(self.rfile.read(2 if size == 126 else 8), "big")
            mask, data = self.rfile.read(4), self.rfile.read(size)
            text = bytes(byte ^ mask[n % 4] for n, byte in enumerate(data))
            if head[0] & 0x0F == 10:
                assert text == b"still there?"
            else:
                return text.decode() if head[0] & 0x0F == 1 else None

    def _send(self, opcode: int, data: bytes, *, last: bool = True) -> None:
        size = len(data)
        length = bytes([size]) if size < 126 else struct.pack(">BH", 126, size) if size < 1 << 16 else struct.pack(">BQ", 127, size)
        self.wfile.write(bytes([(0x80 if last else 0) | opcode]) + length + data)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def serving() -> Iterator[str]:
    """Its address, while it is served."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
