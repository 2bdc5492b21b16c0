"""Serves the viewer on this machine until it is interrupted."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from vlmrl.errors import ConfigError
from vlmrl.view.run import RunView


def serve(paths: Sequence[Path], port: int, say: Callable[[str], None]) -> None:
    """Answer on 127.0.0.1 until Ctrl-C. `say` is told the address, which holds the token.

    Raises:
        ConfigError: not a run, the port is taken, or starlette and uvicorn are not installed.
    """
    try:
        import uvicorn  # pyright: ignore[reportMissingImports]

        from vlmrl.view.app import make_app
    except ModuleNotFoundError as error:
        raise ConfigError(f"vlmrl view needs {error.name}: pip install 'vlmrl[view]'") from error
    runs, token = [RunView(path) for path in paths], secrets.token_urlsafe(24)
    with closing(socket.socket()) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"port {port} of 127.0.0.1: {error.strerror}; give another one with --port, or 0 for a free one") from error
        config = uvicorn.Config(make_app(runs, token), log_level="warning", lifespan="off", server_header=False, access_log=False)
        say(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}")
        uvicorn.Server(config).run(sockets=[listening])
