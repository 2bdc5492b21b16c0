"""Serves the viewer on this machine until it is interrupted."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from vlmrl.errors import ConfigError
from vlmrl.extras.pages.view.view import View


def serve(paths: Sequence[Path], port: int, say: Callable[[str], None]) -> None:
    """Answer on 127.0.0.1 until Ctrl-C. `say` is told the address, which holds the token, once the port answers.

    Raises:
        ConfigError: there is nothing to look at, the port is taken, or starlette and uvicorn are not installed.
    """
    try:
        from vlmrl.extras.pages.view.app import make_app
        from vlmrl.web.listen import listen, run
    except ModuleNotFoundError as error:
        raise ConfigError(f"vlmrl view needs {error.name}: pip install 'vlmrl[view]'") from error
    view, token = View(paths), secrets.token_urlsafe(24)
    with closing(listen("127.0.0.1", port)) as bound:
        run(make_app(view, token), bound, lambda: say(f"http://127.0.0.1:{bound.getsockname()[1]}/?token={token}"))
