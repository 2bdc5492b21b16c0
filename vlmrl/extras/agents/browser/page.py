"""A page in a browser context of its own: what it loads comes from memory, its clock is ours, and it is shown, clicked and typed at."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from vlmrl.extras.agents.browser.pipe import BrowserError, Event
from vlmrl.extras.agents.browser.process import Browser

EPOCH = 1_700_000_000_000
"""What the page's clock shows when it is opened: milliseconds since 1970."""
CALLBACKS = 20_000
"""Most callbacks of one `advance`."""
CORNER = (0, 0)
"""Where the pointer is at first. Chromium may put it there anyway, so there it changes nothing."""
KEYS: Mapping[str, tuple[str, int, str]] = {
    "enter": ("Enter", 13, "\r"),
    "tab": ("Tab", 9, ""),
    "backspace": ("Backspace", 8, ""),
    "delete": ("Delete", 46, ""),
    "escape": ("Escape", 27, ""),
    "home": ("Home", 36, ""),
    "end": ("End", 35, ""),
    "pageup": ("PageUp", 33, ""),
    "pagedown": ("PageDown", 34, ""),
    "left": ("ArrowLeft", 37, ""),
    "up": ("ArrowUp", 38, ""),
    "right": ("ArrowRight", 39, ""),
    "down": ("ArrowDown", 40, ""),
    "space": (" ", 32, " "),
}
"""Name -> (name in the page, code, text)."""
_BUTTONS = {"left": 1, "right": 2}
MODIFIERS = {"alt": 1, "ctrl": 2, "meta": 4, "shift": 8}
COMMANDS = {"a": "selectAll", "c": "copy", "x": "cut", "v": "paste", "z": "undo", "y": "redo"}
"""What Ctrl with a letter does in a field, which a browser without a window must be told."""

Serve = Callable[[str], tuple[bytes, str] | None]
"""URL -> (content, media type); None for what is not there."""

_SCROLL = """
((x, y, dx, dy) => {
  let e = document.elementFromPoint(x, y);
  const turn = {bubbles: true, cancelable: true, clientX: x, clientY: y, deltaX: dx, deltaY: dy};
  if (!e || !e.dispatchEvent(new WheelEvent('wheel', turn))) return;
  for (; e; e = e.parentElement) {
    const s = getComputedStyle(e), at = [e.scrollLeft, e.scrollTop], root = e === document.scrollingElement;
    const can = o => o === 'auto' || o === 'scroll';
    if (!root && !(dy ? can(s.overflowY) || e.tagName === 'TEXTAREA' : can(s.overflowX)) && e.tagName !== 'SELECT') continue;
    e.scrollBy(dx, dy);
    if (at[0] !== e.scrollLeft || at[1] !== e.scrollTop) return;
  }
})"""
_STYLED = "(async () => { document.documentElement.offsetHeight; await document.fonts.ready; })()"
_DECODED = "(async () => { await Promise.all([...document.images].map(i => i.decode().catch(() => 0))); })()"


class Page:
    """One page, used by one thread. A fresh context holds it: no cookie, cache or storage of another page."""

    def __init__(self, browser: Browser, serve: Serve, *, width: int, height: int, scripts: Sequence[str] = ()):
        """An empty page of so many pixels. `scripts` run before those of the page, behind ours."""
        self._browser, self._serve = browser, serve
        self.width, self.height = width, height
        self.refused: list[str] = []
        """What the page asked for and did not get."""
        self.lacking: list[str] = []
        """Of these, what it wanted to load; not where a link or a form wanted to lead."""
        self.errors: list[str] = []
        """Exceptions of its scripts."""
        self._url: str | None = None
        self._loaded = self._crashed = False
        self._loading: dict[str, str] = {}
        """Number of a request that is under way -> its URL."""
        self._held = ""
        self._at: tuple[int, int] | None = None
        """Where actions left the pointer; None before the first."""
        self._context: str | None = browser.call("Target.createBrowserContext", {"disposeOnDetach": True})["browserContextId"]
        target = {"url": "about:blank", "browserContextId": self._context, "width": width, "height": height}
        self._target: str = browser.call("Target.createTarget", target)["targetId"]
        self._session: str = browser.call("Target.attachToTarget", {"targetId": self._target, "flatten": True})["sessionId"]
        browser.pipe.listen(self._session, self._event)
        set_up: list[tuple[str, Mapping[str, Any]]] = [
            ("Page.enable", {}),
            ("Runtime.enable", {}),
            ("Network.enable", {}),
            ("Inspector.enable", {}),
            ("Fetch.enable", {"patterns": [{"urlPattern": "*"}]}),
            ("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}),
            ("Emulation.setTimezoneOverride", {"timezoneId": "UTC"}),
            ("Emulation.setLocaleOverride", {"locale": "en-US"}),
            ("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            *(("Page.addScriptToEvaluateOnNewDocument", {"source": source}) for source in (_clock(), _pointer(), *scripts)),
        ]
        browser.pipe.call_all(set_up, self._session)  # at once: each wait for an answer is a turn of a busy machine

    def call(self, method: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """See `Pipe.call`, for this page.

        Raises:
            BrowserError: as there, or the page crashed.
        """
        if self._crashed:
            raise BrowserError(f"{method}: the page crashed, perhaps for want of memory")
        return self._browser.call(method, parameters, self._session)

    def open(self, url: str) -> None:
        """Load the one document that this page may show, and wait until it is there.

        Raises:
            BrowserError: it is not served, or does not load in time.
        """
        if self._serve(url) is None:
            raise BrowserError(f"{url} is not there")
        self._url, self._loaded = url, False
        self.call("Page.navigate", {"url": url})
        self._browser.pipe.until(lambda: self._loaded or self._crashed, f"load {url}")
        self._url, self._at = None, None
        self._move_silently(*CORNER)

    def run(self, source: str) -> Any:
        """The value of an expression, which must be JSON; of a promise what it comes to.

        Raises:
            BrowserError: it raised.
        """
        asked = {"expression": source, "returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", asked)
        if "exceptionDetails" in found:
            told = found["exceptionDetails"]
            raise BrowserError(f"script of the page: {(told.get('exception', {}).get('description') or told['text'])[:300]}")
        return found["result"].get("value")

    def advance(self, milliseconds: float) -> None:
        """Let the page's clock run: what falls due is called in order."""
        self.run(f"__clock.advance({milliseconds})")

    @property
    def loading(self) -> bool:
        """Whether something that it asked for is still to come."""
        return bool(self._loading)

    def settle(self) -> None:
        """Wait until all that the page asked for has come or failed, and its pictures are decoded."""
        self.run(_STYLED)
        while self._loading and not self._crashed:
            self._browser.pipe.until(lambda: not self._loading or self._crashed, "load")
            self.run(_DECODED)

    def screenshot(self) -> bytes:
        """What it shows, as PNG, in its own pixels."""
        self.settle()
        self._bring_back()
        clip = {"x": 0, "y": 0, "width": self.width, "height": self.height, "scale": 1}
        asked = {"format": "png", "clip": clip, "optimizeForSpeed": True, "fromSurface": True}
        return base64.b64decode(self.call("Page.captureScreenshot", asked)["data"])

    def mouse(self, kind: str, x: int, y: int, *, button: str = "none", count: int = 0) -> None:
        """One event of the mouse: `mouseMoved`, `mousePressed`, `mouseReleased`. A button stays held until it is released."""
        moves = kind == "mouseMoved"
        if moves or self._at != (x, y):
            self._bring_back()
            self._at = x, y
            self.run(f"__pointer.expect({x}, {y}, {json.dumps(moves)})")
        if kind == "mousePressed":
            self._held = button
        held = self._held if kind == "mouseMoved" else button
        buttons = _BUTTONS.get(self._held, 0) if kind != "mouseReleased" else 0
        if kind == "mouseReleased":
            self._held = ""
        event = {"type": kind, "x": x, "y": y, "button": held or "none", "buttons": buttons, "clickCount": count}
        self.call("Input.dispatchMouseEvent", event)
        if moves:
            self.settle()  # a style of what lies under the pointer may load something that moves it away

    def _bring_back(self) -> None:
        """Undo what moved the pointer without an action."""
        if self.run("__pointer.astray()"):
            self._move_silently(*(self._at or CORNER))

    def _move_silently(self, x: int, y: int) -> None:
        """Put the pointer somewhere without a word to the page's scripts (`pointer.js`)."""
        self.run("__pointer.silent(true)")
        held = {"button": self._held or "none", "buttons": _BUTTONS.get(self._held, 0)}
        self.call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y, "clickCount": 0, **held})
        self.run("__pointer.silent(false)")

    def click(self, x: int, y: int, *, count: int = 1, button: str = "left") -> None:
        """Move there, press and release, so many times."""
        self.mouse("mouseMoved", x, y)
        for n in range(1, count + 1):
            self.mouse("mousePressed", x, y, button=button, count=n)
            self.mouse("mouseReleased", x, y, button=button, count=n)

    def key(self, name: str, modifiers: int = 0) -> None:
        """Press and release a key: a name of `KEYS`, or one character."""
        known, code, text = KEYS.get(name.lower(), (name, _code(name), name))
        event: dict[str, Any] = {"key": known, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        text = "" if modifiers & ~MODIFIERS["shift"] else text
        if modifiers & MODIFIERS["ctrl"] and name.lower() in COMMANDS:
            event["commands"] = [COMMANDS[name.lower()]]
        pressed = {"type": "keyDown" if text else "rawKeyDown", **event} | ({"text": text} if text else {})
        self.call("Input.dispatchKeyEvent", pressed)
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def type(self, text: str) -> None:
        """Press and release the key of each character; a line's end is Enter."""
        for character in text:
            self.key({"\n": "enter", "\t": "tab", " ": "space"}.get(character, character))

    def scroll(self, x: int, y: int, dx: int, dy: int) -> None:
        """Scroll what lies there by so many pixels, or the nearest thing around it that can be scrolled.

        A script does it: what the wheel moves, the compositor moves when it likes.
        """
        self.run(f"{_SCROLL}({x}, {y}, {dx}, {dy})")

    def close(self) -> None:
        """Drop it with its context. May be called twice.

        Raises:
            BrowserError: the browser does not do it.
        """
        if self._context is None:
            return
        context, self._context = self._context, None
        self._browser.pipe.forget(self._session)
        self._browser.call("Target.disposeBrowserContext", {"browserContextId": context})

    # ---- events ---------------------------------------------------------------------------------------------------

    def _event(self, event: Event) -> None:
        method, parameters = event["method"], event["params"]
        if method == "Fetch.requestPaused":
            self._paused(parameters)
        elif method == "Network.requestWillBeSent":
            self._loading[parameters["requestId"]] = parameters["request"]["url"]
        elif method in ("Network.loadingFinished", "Network.loadingFailed"):
            url = self._loading.pop(parameters["requestId"], None)
            if url is not None and "blockedReason" in parameters and url not in self.refused:
                self._refuse(url)  # by the browser before it came to `_paused`: a file of this machine, what is not encrypted
        elif method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            told = str(details.get("exception", {}).get("description") or details.get("text"))[:300]
            # an error of syntax has no stack
            where = "" if "\n" in told or not details.get("url") else f"\n    at {details['url']}:{details['lineNumber'] + 1}"
            self.errors.append(told + where)
        elif method == "Network.webSocketCreated":  # the browser lets it reach nothing (process.ISOLATION)
            self._refuse(parameters["url"])
        elif method == "Inspector.targetCrashed":
            self._crashed = True

    def _refuse(self, url: str, *, leads_away: bool = False) -> None:
        self.refused.append(url)
        if not leads_away:
            self.lacking.append(url)

    def _paused(self, asked: Mapping[str, Any]) -> None:
        """Answer from memory, or refuse. A document other than the one that is being opened is refused so that the page stays."""
        url, request = asked["request"]["url"], asked["requestId"]
        document = asked["resourceType"] == "Document"
        of_page = asked["frameId"] == self._target
        served = None if document and (url != self._url or not of_page) else self._serve(url)
        if served is None:
            self._refuse(url, leads_away=document and of_page)
            reason = "Aborted" if document else "BlockedByClient"
            self._browser.pipe.tell("Fetch.failRequest", {"requestId": request, "errorReason": reason}, self._session)
            return
        content, kind = served
        headers = [{"name": "Content-Type", "value": kind}, {"name": "Cache-Control", "value": "no-store"}]
        answer = {"requestId": request, "responseCode": 200, "responseHeaders": headers, "body": base64.b64encode(content).decode("ascii")}
        self._browser.pipe.tell("Fetch.fulfillRequest", answer, self._session)


def source(name: str) -> str:
    """A script of this folder."""
    return resources.files("vlmrl.extras.agents.browser").joinpath(name).read_text(encoding="utf-8")


def _pointer() -> str:
    return source("pointer.js")


def _clock() -> str:
    return source("clock.js").replace("EPOCH", json.dumps(EPOCH)).replace("LIMIT", json.dumps(CALLBACKS))


class OnePage:
    """What environments share that show one page at a time in the browser of their process."""

    _browser: Browser
    _page: Page | None = None

    def close(self) -> None:
        """Drop the page. The browser is kept for the other environments of this process."""
        if self._page is not None:
            page, self._page = self._page, None
            page.close()

    @property
    def _now(self) -> Page:
        if self._page is None:
            raise RuntimeError("no episode is running")
        return self._page

    def _drop(self) -> None:
        """After a failure: the page is worth nothing any more; nor is a browser that cannot even close it."""
        try:
            self.close()
        except BrowserError:
            self._browser.close()


def _code(name: str) -> int:
    """The key code of a letter or digit; 0 for other characters, whose ordinals are codes of other keys ("." is that of Delete)."""
    return ord(name.upper()) if len(name) == 1 and name.isascii() and name.isalnum() else 0
