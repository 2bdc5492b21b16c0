"""One exchange has one deadline, whatever of it is slow; the clock is moved by each piece that passes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.judge_server import FakeTime
from vlmrl.extras.judges.client import Client, Meters
from vlmrl.extras.judges.throttle import Timing
from vlmrl.extras.judges.transport import Endpoint, Failure

BODY = b'{"score": 0.5}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
PIECES = 5000
"""How long a slow server goes on before it gives an honest end: long after any deadline, and not for ever."""
FEW = 20
TIMEOUT = 30.0
PACE = 0.001
"""Seconds between two pieces, so that they are not taken in by one read."""

Serve = Callable[[socket.socket, Callable[[], None]], None]
"""Answers one connection; calls its second argument with each piece, which moves the clock by a second."""


def read_request(connection: socket.socket) -> None:
    """Take in a request to its last byte."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    (length,) = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < length:
        body += connection.recv(65536)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SLOW: dict[str, tuple[bytes, bytes, bytes]] = {
    "status line": (b"HTTP/1.1 200 ", b"O", b"\r\n" + HEAD.partition(b"\r\n")[2] + BODY),
    "headers": (HEAD[:-2], b"X-More: 1\r\n", b"\r\n" + BODY),
    "one header": (HEAD[:-2] + b"X-More: ", b"1", b"\r\n\r\n" + BODY),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + BODY),
    "body": (CHUNKED, b"1\r\n \r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)),
}
"""What is slow -> how a reply begins, the piece that it goes on with, and how it ends."""


def replies(what: str, pieces: int) -> Serve:
    """A reply with so many slow pieces."""
    begin, piece, end = SLOW[what]

    def serve(connection: socket.socket, tick: Callable[[], None]) -> None:
        read_request(connection)
        connection.sendall(begin)
        for _ in range(pieces):
            tick()
            connection.sendall(piece)
        connection.sendall(end)

    return serve


def reads_slowly(connection: socket.socket, tick: Callable[[], None]) -> None:
    """A request that is taken in slowly."""
    for _ in range(PIECES):
        tick()
        if not connection.recv(4096):
            return
    connection.sendall(HEAD + BODY)


@contextmanager
def listening(serve: Serve, clock: FakeTime) -> Iterator[tuple[int, list[int]]]:
    """A port on which each connection is answered by `serve`, and the ticks so far."""
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(1)
        clock.sleep(1.0)
        time.sleep(PACE)

    def work() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed: the test is over
                return
            with connection, suppress(OSError):  # the client has left, as it should
                serve(connection, tick)

    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.bind(("127.0.0.1", 0))
        server.listen()
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1], ticks
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join()


def asked(url: str, clock: FakeTime, *, timeout: float = TIMEOUT, size: int = 0) -> object:
    """What comes back for a request of at least `size` bytes."""
    endpoint = Endpoint(url=url, model="m", concurrency=1, timeout=timeout)
    client = Client(endpoint, timing=clock.timing(), meters=Meters(), secret=None)
    try:
        return client._exchange("chat/completions", json.dumps({"pad": "x" * size}).encode())[0]
    finally:
        client.close()


@pytest.mark.parametrize("what", [*SLOW, "request"])
def test_what_comes_slowly_ends_at_the_deadline(what: str) -> None:
    clock = FakeTime()
    with listening(reads_slowly if what == "request" else replies(what, PIECES), clock) as (port, ticks):
        reply = asked(f"http://127.0.0.1:{port}/v1", clock, size=32 * 2**20 if what == "request" else 0)
        assert isinstance(reply, Failure), reply
        assert (reply.kind, reply.reason) == ("again", "timeout")
    assert len(ticks) < PIECES, "the server was cut off"


@pytest.mark.parametrize("what", SLOW)
def test_what_comes_slowly_within_the_deadline_is_taken(what: str) -> None:
    clock = FakeTime()
    with listening(replies(what, FEW), clock) as (port, _):
        assert asked(f"http://127.0.0.1:{port}/v1", clock) == {"score": 0.5}


def test_a_handshake_that_never_comes_ends_at_the_deadline() -> None:
    """A server that takes the connection and says nothing to TLS."""
    held = threading.Event()

    def silent(connection: socket.socket, tick: Callable[[], None]) -> None:
        held.wait()

    clock = FakeTime()
    with listening(silent, clock) as (port, _):
        try:
            reply = asked(f"https://127.0.0.1:{port}/v1", clock, timeout=0.2)
        finally:
            held.set()
    assert isinstance(reply, Failure)
    assert (reply.kind, reply.reason) == ("again", "timeout")


def test_a_deadline_that_is_over_sends_nothing() -> None:
    """All of the addresses of a name share the time: none is tried after it."""

    class Over(FakeTime):
        def timing(self) -> Timing:
            plain = super().timing()

            def now() -> float:
                self.seconds += TIMEOUT
                return plain.now()

            return type(plain)(now=now, wall=plain.wall, sleep=plain.sleep, jitter=plain.jitter, stop=plain.stop)

    clock = Over()
    with listening(replies("body", FEW), clock) as (port, ticks):
        reply = asked(f"http://localhost:{port}/v1", clock)
        assert isinstance(reply, Failure)
        assert reply.reason == "timeout"
    assert ticks == []
