"""A client of WebSocket (RFC 6455) for texts: what an environment that is served needs of it, and nothing more. Blocking, with a deadline.

Frames that arrive in parts are joined, pings are answered. What the server does not say in time, or not as the protocol has it, is an
OSError: of an environment that is a fault.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import ssl
import struct
import time
from urllib.parse import urlsplit

MOST = 64 << 20
"""Bytes of the longest message."""
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10


class WebSocket:
    """One connection."""

    def __init__(self, url: str, *, seconds: float):
        """Connect to `ws://` or `wss://`; `seconds` is the deadline of connecting and of each message.

        Raises:
            OSError: nobody answers there, or not with a WebSocket.
        """
        at = urlsplit(url)
        secure = at.scheme == "wss"
        host, port = at.hostname or "", at.port or (443 if secure else 80)
        self._seconds, self._rest = seconds, b""
        self._until = time.monotonic() + seconds
        self._socket = socket.create_connection((host, port), timeout=seconds)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secure:
                self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=host)
            self._greet(f"{at.path or '/'}{f'?{at.query}' if at.query else ''}", at.netloc.rpartition("@")[2])
        except OSError:
            self._socket.close()
            raise

    def ask(self, text: str) -> str:
        """Send a text and wait for the next one.

        Raises:
            OSError: the connection ended, or nothing came in time.
        """
        self._until = time.monotonic() + self._seconds
        self._send(_TEXT, text.encode())
        kind, whole = 0, b""
        while True:
            last, opcode, data = self._frame()
            if opcode == _PING:
                self._send(_PONG, data)
            elif opcode == _CLOSE:
                raise ConnectionResetError(f"the server closed the connection: {data[2:].decode(errors='replace')[:200]}")
            elif opcode != _PONG:
                kind, whole = kind or opcode, whole + data
                if len(whole) > MOST:
                    raise ConnectionError(f"a message of more than {MOST} bytes")
                if last and kind != _TEXT:
                    raise ConnectionError("the server sent bytes where a text was expected")
                if last:
                    return whole.decode()

    def close(self) -> None:
        """Say goodbye and let go of it, whatever state it is in."""
        try:
            self._until = time.monotonic() + self._seconds
            self._send(_CLOSE, struct.pack(">H", 1000))
        except OSError:
            return  # it is gone already
        finally:
            self._socket.close()

    def _greet(self, path: str, host: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (f"GET {path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade")
        asked = "\r\n".join((*lines, f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""))
        self._socket.sendall(asked.encode("ascii"))
        head = b""
        while b"\r\n\r\n" not in head:
            if len(head) > 1 << 16:
                raise ConnectionError("no answer to a request for a WebSocket")
            head += self._some()
        said, _, self._rest = head.partition(b"\r\n\r\n")
        first, *fields = said.decode("latin-1").split("\r\n")
        found = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        wanted = base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()
        if first.split(" ")[1:2] != ["101"] or found.get("sec-websocket-accept") != wanted:
            raise ConnectionError(f"no WebSocket there: {first[:100]}")

    def _send(self, opcode: int, data: bytes) -> None:
        size = len(data)
        length = (
            bytes([0x80 | size]) if size < 126 else struct.pack(">BH", 0xFE, size) if size < 1 << 16 else struct.pack(">BQ", 0xFF, size)
        )
        mask = os.urandom(4)  # a client masks what it sends
        covered = int.from_bytes(data, "little") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "little")
        self._socket.settimeout(self._left())
        self._socket.sendall(bytes([0x80 | opcode]) + length + mask + covered.to_bytes(size, "little"))

    def _frame(self) -> tuple[bool, int, bytes]:
        """(whether it ends its message, opcode, content) of the next frame."""
        first, second = self._take(2)
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
        if second & 0x80 or first & 0x70 or size > MOST:
            raise ConnectionError(f"a frame that no server may send: {first:#x} {second:#x}, {size} bytes")
        return bool(first & 0x80), first & 0x0F, self._take(size)

    def _take(self, size: int) -> bytes:
        parts, have = [self._rest], len(self._rest)
        while have < size:
            parts.append(self._some())
            have += len(parts[-1])
        whole = b"".join(parts)
        self._rest = whole[size:]
        return whole[:size]

    def _some(self) -> bytes:
        self._socket.settimeout(self._left())
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the server ended the connection")
        return data

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"nothing whole came within {self._seconds:g} s")
        return left
