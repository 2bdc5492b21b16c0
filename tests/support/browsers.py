"""What tests of the browser share: when they cannot run, pages of their own, the processes below a process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vlmrl.extras.agents.browser.page import Page
from vlmrl.extras.agents.browser.process import Browser, find_browser, missing_browser
from vlmrl.extras.agents.worlds.miniwob import missing

needs_browser = pytest.mark.skipif(find_browser() is None, reason=f"needs a browser: {missing_browser()}")
needs_miniwob = pytest.mark.skipif(missing() is not None, reason=f"needs {missing()}")
OWN = "http://own.invalid/"


def own_page(browser: Browser, html: str, *, width: int = 160, height: int = 210, **files: tuple[bytes, str]) -> Page:
    """A page with this body, loaded; `files` lie beside it by name."""

    def serve(url: str) -> tuple[bytes, str] | None:
        if url == OWN:
            return f"<!doctype html><meta charset=utf-8><body style='margin:0'>{html}".encode(), "text/html; charset=utf-8"
        return files.get(url.removeprefix(OWN))

    page = Page(browser, serve, width=width, height=height)
    page.open(OWN)
    return page


def below(pid: int) -> list[int]:
    """The living processes that a process has started, and those that they have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found = [child for child, parent in parents.items() if parent == pid]
    return found + [lower for child in found for lower in below(child)]


def alive(pids: list[int]) -> list[int]:
    """Those that still run."""
    out: list[int] = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                out.append(pid)
        except OSError:
            continue
    return out


def comes_true(what: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it does, in time."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
