"""The network below HTTP: connections on which every wait of an exchange ends at one deadline.

HTTP libraries take a timeout for each wait, so a server that sends a byte now and then, in its status line, in its headers or as one
`100 Continue` after the other, is waited for without end. Here each call of the socket gets what is left of the exchange.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

_LEFT: ContextVar[Callable[[], float]] = ContextVar("seconds that are left of the exchange of this thread")


@contextmanager
def until(end: float, now: Callable[[], float]) -> Iterator[None]:
    """All that this thread does meanwhile on connections of `open_pool` ends when `now()` is `end`, with `httpcore.TimeoutException`."""
    token = _LEFT.set(lambda: end - now())
    try:
        yield
    finally:
        _LEFT.reset(token)


def open_pool(connections: int) -> httpcore.ConnectionPool:
    """HTTP/1.1, certificates checked. No redirects are followed and no proxy or .netrc of the environment is used: they would send
    pictures and key elsewhere than the recipe says.

    Its connections are used within `until` alone (LookupError otherwise).
    """
    return httpcore.ConnectionPool(
        ssl_context=httpx.create_ssl_context(trust_env=False),
        max_connections=connections,
        max_keepalive_connections=connections,
        keepalive_expiry=5.0,
        network_backend=_Network(),
    )


def _left(late: type[httpcore.TimeoutException]) -> float:
    seconds = _LEFT.get()()
    if seconds <= 0:  # 0 would be a socket that does not wait, and less is an error
        raise late("the time of the exchange is over")
    return seconds


class _Network(httpcore.NetworkBackend):
    """Connects by TCP. Looking up a name is left to the system's resolver, which has limits of its own."""

    def __init__(self) -> None:
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        failed: httpcore.ConnectError | None = None
        for *_, address in found:  # one by one, since each would get the whole time otherwise
            try:
                left = _left(httpcore.ConnectTimeout)
                return _Stream(self._plain.connect_tcp(str(address[0]), port, left, local_address, socket_options))
            except httpcore.ConnectError as error:
                failed = error
        assert failed is not None, "a lookup that succeeds gives an address"
        raise failed


class _Stream(httpcore.NetworkStream):
    """A connection; the timeouts that it is called with are those of single waits, and not used."""

    def __init__(self, inner: httpcore.NetworkStream):
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        connection: socket.socket = self._inner.get_extra_info("socket")
        rest = memoryview(buffer)
        while rest:  # the inner stream would wait anew for each part that a slow reader takes
            connection.settimeout(_left(httpcore.WriteTimeout))
            try:
                rest = rest[connection.send(rest) :]
            except TimeoutError as error:
                raise httpcore.WriteTimeout(str(error)) from error
            except OSError as error:
                raise httpcore.WriteError(str(error)) from error

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _left(httpcore.ConnectTimeout)))

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
