"""A served viewer, and a real headless Chromium that opens it."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

from vlmrl.extras.agents.browser.process import find_browser

BROWSER = find_browser()
TOKEN = "token-of-the-tests-0123456789"


@contextmanager
def served(*folders: Path) -> Iterator[str]:
    """The address of a viewer of these folders, without its token."""
    import uvicorn

    from vlmrl.extras.pages.view.app import make_app
    from vlmrl.extras.pages.view.view import View

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(View(folders), TOKEN), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def opened(address: str, profile: Path, *options: str, view: str = "", token: str = TOKEN) -> tuple[str, str]:
    """The document after its scripts ran, and what the browser said. `view` is what stands behind #."""
    command = [
        *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
        *("--virtual-time-budget=6000", f"--user-data-dir={profile}", *options),
        f"{address}/?token={token}#{view}",
    ]
    if not any(option.startswith("--screenshot") for option in options):
        command.insert(-1, "--dump-dom")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, done.stderr


def errors(said: str) -> list[str]:
    """What the console of the page complained of."""
    return re.findall(r"CONSOLE.*(?:Error|Refused|violates|Failed).*", said)


class Seen(HTMLParser):
    """Elements and text of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._skip = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def tags(self, name: str) -> list[dict[str, str | None]]:
        """The attributes of each element of a name."""
        return [attributes for tag, attributes in self.elements if tag == name]
