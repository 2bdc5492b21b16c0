"""A port is told of once it answers."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra 'serve' is not installed")

from vlmrl.errors import ConfigError
from vlmrl.web.listen import listen, run


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def test_the_port_answers_when_it_is_told_of() -> None:
    """Told is from the thread that serves, so that only connecting can be tried there; what is asked is answered when it goes on."""
    with closing(listen("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        answered: list[bytes] = []

        def asks(connection: socket.socket) -> None:
            with connection:
                answered.append(connection.recv(12))
            signal.raise_signal(signal.SIGINT)

        def told() -> None:
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            threading.Thread(target=asks, args=(connection,)).start()

        with pytest.raises(KeyboardInterrupt):
            run(app, bound, told)
    assert answered == [b"HTTP/1.1 204"]


def test_a_port_that_is_taken_is_said() -> None:
    with closing(listen("127.0.0.1", 0)) as bound:
        bound.listen()
        with pytest.raises(ConfigError, match="take another with --port"):
            listen("127.0.0.1", bound.getsockname()[1])
