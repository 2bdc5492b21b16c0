"""The address of a viewer is told when it can be opened."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="vlmrl view needs starlette and uvicorn: pip install 'vlmrl[view]'")

import vlmrl.cli  # noqa: F401 (commands are registered by it, and import it)
from tests.support.viewed import make_run
from vlmrl.extras.pages.view.command import serve


def test_an_address_that_is_told_can_be_opened(tmp_path: Path) -> None:
    answered: list[bytes] = []

    def asks(connection: socket.socket) -> None:
        with connection:
            answered.append(connection.recv(12))
        signal.raise_signal(signal.SIGINT)

    def say(address: str) -> None:
        """Called in the thread that serves: connecting is tried here, the answer read beside it."""
        parts = urlsplit(address)
        connection = socket.create_connection((parts.hostname or "", parts.port or 0))
        connection.sendall(f"GET /api/folder?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        threading.Thread(target=asks, args=(connection,)).start()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background has it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            serve([make_run(tmp_path / "one", steps=1)], 0, say)
    finally:
        signal.signal(signal.SIGINT, before)
    assert answered == [b"HTTP/1.1 200"]
