"""A page of the viewer in a real browser, driven over its pipe: links are clicked, keys pressed, and what is shown is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.asgi import ask
from tests.support.browse import TOKEN
from vlmrl.extras.agents.browser.page import Page
from vlmrl.extras.agents.browser.process import Browser

HOME = "http://127.0.0.1/"
TURNS = """(async () => {
  const turn = () => new Promise((done) => { const c = new MessageChannel(); c.port1.onmessage = done; c.port2.postMessage(0); });
  for (let n = 0; n < 3; n += 1) await turn();
  while (Number(document.body.dataset.ready) !== shows) await turn();
})()"""
"""Comes to an end when the newest view is there."""
MIDDLE = """((where, text, at) => {
  const one = [...document.querySelectorAll(where)].find((one) => text === null || one.innerText.trim() === text);
  if (!one) throw new Error(`nothing is ${where} ${text}`);
  one.scrollIntoView({ block: "center" });
  const box = one.getBoundingClientRect();
  return at ? [box.left + at[0], box.top + at[1]] : [box.left + box.width / 2, box.top + box.height / 2];
})"""


class Tab:
    """One view of some folders, at an address of the page (`at`, what stands behind #)."""

    def __init__(
        self, browser: Browser, folders: Sequence[Path], *, at: str = "", width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        self._app = application(folders)
        here = json.dumps(HOME), json.dumps(f"{HOME}#{at}")
        start = f"if (location.href.startsWith({here[0]})) history.replaceState(null, '', {here[1]})"
        self.page = Page(browser, self._serve, width=width, height=height, scripts=[start] if at else [])
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.page.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.page.open(HOME)
        self.wait()

    def _serve(self, url: str) -> tuple[bytes, str] | None:
        headers = [("host", "127.0.0.1"), ("authorization", f"Bearer {TOKEN}")]
        found = ask(self._app, "GET", urlsplit(url).path, headers=headers)
        return (found.body, found.headers["content-type"]) if found.status == 200 else None

    def wait(self) -> None:
        """Until the newest view is there."""
        self.page.run(TURNS)
        assert self.page.errors == []

    def go(self, at: str) -> None:
        """Follow a link to an address of the page."""
        self.page.run(f"location.hash = {json.dumps(at)}")
        self.wait()

    @property
    def at(self) -> str:
        """What stands behind # in the address."""
        return self.page.run("location.hash.slice(1)")

    def text(self, where: str = "main") -> str:
        """What is to be read in the first element of a selector."""
        return self.page.run(f"document.querySelector({json.dumps(where)})?.innerText ?? ''")

    def texts(self, where: str) -> list[str]:
        """What is to be read in each element of a selector."""
        return self.page.run(f"[...document.querySelectorAll({json.dumps(where)})].map((one) => one.innerText)")

    def click(self, where: str, text: str | None = None, *, at: tuple[float, float] | None = None) -> None:
        """Press the mouse on the first element of a selector (with this text), in its middle or at a place within it."""
        x, y = self.page.run(f"{MIDDLE}({json.dumps(where)}, {json.dumps(text)}, {json.dumps(at)})")
        self.page.click(round(x), round(y))
        self.wait()

    def press(self, key: str) -> None:
        """Press a key."""
        self.page.key(key)
        self.wait()

    def write(self, text: str) -> None:
        """Put a text into the field that has the focus."""
        self.page.call("Input.insertText", {"text": text})


def application(folders: Sequence[Path]) -> Any:
    """The application of a viewer, to be asked without a server."""
    from vlmrl.extras.pages.view.app import make_app
    from vlmrl.extras.pages.view.view import View

    return make_app(View(list(folders)), TOKEN)


@contextmanager
def tab(browser: Browser, *folders: Path, **more: Any) -> Iterator[Tab]:
    """A `Tab` that is closed at the end."""
    made = Tab(browser, folders, **more)
    try:
        yield made
    finally:
        made.page.close()
