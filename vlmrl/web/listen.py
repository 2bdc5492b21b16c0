"""Opens a port and answers on it until a signal comes. Needs uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable

from vlmrl.errors import ConfigError
from vlmrl.web.guard import App

try:
    import uvicorn  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    raise ConfigError(f"a server needs {error.name}: pip install 'vlmrl[serve]' or 'vlmrl[view]'") from error


def listen(host: str, port: int) -> socket.socket:
    """A socket on which nobody is answered yet; port 0 takes a free one.

    Raises:
        ConfigError: the address is not there, or in use.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise ConfigError(f"{host}, port {port}: {error.strerror or error}; take another with --port, or 0 for a free one") from error
    return bound


class Server(uvicorn.Server):
    """Tells when the port answers."""

    def __init__(self, app: App, answers: Callable[[], None]):
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off"))
        self._answers = answers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._answers()


def run(app: App, bound: socket.socket, answers: Callable[[], None]) -> None:
    """Answer requests until a signal comes. `answers` is called once the port does."""
    Server(app, answers).run(sockets=[bound])
