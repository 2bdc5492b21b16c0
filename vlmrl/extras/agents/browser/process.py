"""The browser's process: where it is found, how it is started, what it may reach (nothing) and take, how it ends."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from vlmrl.extras.agents.browser import keeper
from vlmrl.extras.agents.browser.pipe import BrowserError, Pipe

VARIABLE = "VLMRL_BROWSER"
"""Environment variable that names the program."""
NAMES = ("chromium-headless-shell", "chrome-headless-shell", "headless_shell", "chromium", "chromium-browser", "google-chrome")
"""Programs that are looked for on PATH, in this order."""
INSTALL = "apt-get install chromium-headless-shell"
MEMORY = 2 << 30
"""Bytes of private writable memory of each of its processes."""
CPU = 3600
"""Seconds of computing of each of its processes: a last line behind deadlines. A page has a process of its own."""
START_SECONDS = 60.0
LAST_SECONDS = 2.0

ISOLATION = (
    # names lead nowhere, and what goes around names meets a proxy that is not there
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--disable-breakpad",
    "--no-first-run",
    "--mute-audio",
    "--block-new-web-contents",
)
SAME_PIXELS = (
    "--disable-gpu",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--disable-font-subpixel-positioning",
    "--disable-threaded-animation",
    "--disable-threaded-scrolling",
    "--disable-smooth-scrolling",
    "--disable-checker-imaging",
    "--disable-partial-raster",
    "--disable-image-animation-resync",
    "--blink-settings=imageAnimationPolicy=2",
    "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--lang=en-US",
)
FLAGS = ("--headless", "--remote-debugging-pipe", "--disable-dev-shm-usage", *ISOLATION, *SAME_PIXELS)


def find_browser() -> str | None:
    """The browser's program: what VLMRL_BROWSER names, else the first of `NAMES` on PATH; None where there is none."""
    given = os.environ.get(VARIABLE)
    if given:
        return shutil.which(given)
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


def missing_browser() -> str | None:
    """What must be installed, in words; None where a browser is there."""
    if find_browser() is not None:
        return None
    given = os.environ.get(VARIABLE)
    if given:
        return f"{VARIABLE} names '{given}', which is no program; name the program of Chromium, or unset it"
    return f"no Chromium on PATH; {INSTALL}"


class Browser:
    """A running browser. It has no page; `vlmrl.extras.agents.browser.page.Page` opens one."""

    def __init__(self, *, program: str | None = None, seconds: float = 10.0, start: float = START_SECONDS, sandbox: bool = True):
        """Start one.

        Args:
            program: of Chromium; None: the one that is found.
            seconds: deadline of each call.
            start: deadline of the first answer.
            sandbox: whether pages run in Chromium's sandbox. Never for root, for whom it does not start with one.

        Raises:
            BrowserError: there is none, or it does not start.
        """
        command = program or find_browser()
        if command is None:
            raise BrowserError(str(missing_browser()))
        request_end, requests = os.pipe()
        replies, reply_end = os.pipe()
        flags = FLAGS if sandbox and os.geteuid() != 0 else (*FLAGS, "--no-sandbox")
        try:
            # -I -S: no packages, no variables of Python; the keeper starts in milliseconds
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, *map(str, (request_end, reply_end, MEMORY, CPU)), command, *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(request_end, reply_end),
                start_new_session=True,
            )
        except OSError:
            os.close(requests)
            os.close(replies)
            raise
        finally:
            os.close(request_end)
            os.close(reply_end)
        self._ends: tuple[int, ...] = (requests, replies)
        self.alive = True
        self.pipe = Pipe(requests, replies, seconds=start, died=self._how)
        try:
            self.version: str = self.call("Browser.getVersion")["product"]
            self.pipe.seconds = seconds
        except BrowserError:
            self.close()
            raise

    def call(self, method: str, parameters: Mapping[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """See `Pipe.call`.

        Raises:
            BrowserError: the browser refused, died, or did not answer in time.
        """
        return self.pipe.call(method, parameters, session)

    def close(self) -> None:
        """End it with all its processes, and remove its profile. May be called twice."""
        if not self._ends:
            return
        self.alive, self.pipe.closed = False, True
        for end in self._ends:
            os.close(end)
        self._ends = ()
        self._keeper.communicate()  # closes its input, which is what it waits for

    def _how(self) -> str:
        """How it died, for messages."""
        self.alive = False
        assert self._keeper.stdout is not None
        if not select.select([self._keeper.stdout], [], [], LAST_SECONDS)[0]:
            return ""
        line = self._keeper.stdout.readline()
        if not line:
            return ""
        told = json.loads(line)
        how = f"it died of signal {-told['code']}" if told["code"] < 0 else f"it exited with status {told['code']}"
        said = told["said"].strip()
        return f"; {how}" + (f" and said:\n{said}" if said else "")


_running: list[Browser] = []


def shared_browser(*, seconds: float, sandbox: bool) -> Browser:
    """The browser of this process, which all environments in it share, each with a context of its own; a new one where it has died.

    Raises:
        BrowserError: it does not start.
    """
    while _running and not _running[-1].alive:
        _running.pop().close()
    if not _running:
        _running.append(Browser(seconds=seconds, sandbox=sandbox))
    return _running[-1]
