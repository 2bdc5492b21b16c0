"""Environment `web_page`: a page of your own in a browser without a window. An episode can load what lies beside its `index.html`, no more.

The page defines three functions on `window`. `reset(seed, params)` sets a problem and may return its instruction, also by a promise;
`reward()` says what has been reached, from 0 to 1, or null; `done()` says whether the episode is over. They are asked after every action:
the reward of a turn is what `reward()` rose by, so the return is what it said last. Two more are optional: `state()`, what the screen
hides, and `solve()`, the actions that lead from here to the end.

Every episode gets a fresh page in a browser context of its own. The page's clock stands still while nobody acts, its random numbers are
those of the seed, and nothing outside the folder can be reached: what is seen is a function of folder, seed, params and actions. A page
that fails is a fault with the name of the page and of the function, and never a reward. Actions are those of `browser.actions`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.extras.agents.browser.actions import EXPLANATION, act, propose
from vlmrl.extras.agents.browser.files import Files, read_files
from vlmrl.extras.agents.browser.fonts import drawn_with
from vlmrl.extras.agents.browser.page import OnePage, Page, source
from vlmrl.extras.agents.browser.pipe import BrowserError
from vlmrl.extras.agents.browser.process import missing_browser, shared_browser
from vlmrl.extras.agents.protocol import Observation, Optimum, Transition
from vlmrl.metrics.gui import parse_action
from vlmrl.protocols import environment
from vlmrl.rng import key

VERSION = "1"
ORIGIN = "https://page.invalid/"
"""Under https, where a page may use all that a browser has."""
INDEX = "index.html"
LARGEST = 64 << 20
"""Bytes of all files together."""
SIDES = (28, 4096)
SEEDS = 2**53
"""The page's numbers are exact below."""
RESET_MS = 10_000
"""Most time of the page that `reset` may take."""
ROUNDING = 1e-9
"""Shares that a page adds up may come to this much more than 1."""
_PAUSE = 0.005


class PageError(RuntimeError):
    """The page is not what `web_page` needs: it names the page, the function and what to do."""


def read_page(folder: str) -> Files:
    """The files of a page.

    Raises:
        ConfigError: no such folder, no `index.html` in it, a link that leads out of it, or too many bytes.
    """
    where = f"environment 'web_page': folder '{folder}'"
    at = Path(folder)
    if not at.is_dir():
        raise ConfigError(f"{where}: no such folder; it is relative to the working directory, {Path.cwd()}")
    if not (at / INDEX).is_file():
        raise ConfigError(f"{where}: it has no {INDEX}; the page that is opened has that name")
    inside = at.resolve()
    out = [path for path in at.rglob("*") if path.is_symlink() and not path.resolve().is_relative_to(inside)]
    if out:
        raise ConfigError(f"{where}: {out[0].relative_to(at)} is a link to {out[0].resolve()}; copy it into the folder")
    size = sum(path.stat().st_size for path in at.rglob("*") if path.is_file())
    if size > LARGEST:
        raise ConfigError(f"{where}: {size >> 20} MiB of files, and at most {LARGEST >> 20} are held; leave in it what the page loads")
    return Files(ORIGIN, read_files(at))


@functools.cache
def _held(folder: str) -> Files:
    """Read once by each process: an episode does not see half a change."""
    return read_page(folder)


class WebPage(OnePage):
    """See the top of the file."""

    def __init__(
        self,
        folder: str,
        *,
        width: int,
        height: int,
        explain: bool = True,
        success_at: float = 1.0,
        action_ms: int = 100,
        wait_ms: int = 1000,
        patience: float = 8.0,
        sandbox: bool = True,
    ):
        """The arguments are those of the environment."""
        self._files, self._name = _held(folder), f"{folder.rstrip('/')}/{INDEX}"
        self._width, self._height = width, height
        self._explain, self._success_at = explain, success_at
        self._action_ms, self._wait_ms, self._patience = action_ms, wait_ms, patience
        self._browser = shared_browser(seconds=patience, sandbox=sandbox)
        self._instruction = ""
        self._reached = 0.0
        self._over = False

    @property
    def identity(self) -> Mapping[str, str]:
        return {
            "environment": "web_page",
            "version": VERSION,
            "page": self._files.digest,
            "browser": self._browser.version,
            "fonts": drawn_with(self._browser),
            "screen": f"{self._width}x{self._height}",
        }

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """A fresh page with a problem of the task's `seed`, or of this seed where the task states none; `params` go to the page."""
        unknown = sorted(set(task) - {"id", "attempt", "seed", "params"})
        if unknown:
            raise PageError(f"{self._name}: task '{task.get('id')}' has {unknown}; a row's `environment` may have seed and params")
        of_page = task.get("seed", key(seed, "web_page") % 2**32)
        if type(of_page) is not int or not 0 <= of_page < SEEDS:
            raise PageError(f"{self._name}: task '{task.get('id')}': seed {of_page!r}; it is an integer from 0 to below 2^53")
        self.close()
        self._reached, self._over = 0.0, False
        with self._dropped():
            numbers = [key(of_page, "web_page", "random", n) % 2**32 for n in range(4)]
            script = source("contract.js").replace("SEEDS", json.dumps(numbers))
            self._page = Page(self._browser, self._files.serve, width=self._width, height=self._height, scripts=(script,))
            self._page.open(ORIGIN + INDEX)
            self._sound("while it was loaded")
            for name, found in self._page.run("__page.absent()"):
                raise self._absent(name, found)
            self._begin([of_page, *([task["params"]] if "params" in task else [])])
            self._page.advance(self._action_ms)
            self._sound("in reset(seed)")
            if self._done():
                raise PageError(f"{self._name}: done() is true right after reset(seed); there is nothing to do then")
            self._reward()
            return self._observe()

    def step(self, action: str) -> Transition:
        """Act, and let the page's clock run. What cannot be read does nothing, and costs the page no time."""
        if self._over:
            raise RuntimeError("web_page: a step after the end of the episode")
        parsed = parse_action(action)
        with self._dropped():
            page = self._now
            if parsed is None or not act(page, parsed, middle=(self._width // 2, self._height // 2)):
                return Transition(observation=self._observe(), outcome="invalid")
            page.advance(self._wait_ms if parsed.kind == "wait" else self._action_ms)
            page.settle()
            self._sound(f"after {action.strip()[:100]}")
            self._over, reward, before = self._done(), self._reward(), self._reached
            self._reached = before if reward is None else reward
            if not self._over:
                return Transition(observation=self._observe(), reward=self._reached - before)
            if reward is None:
                raise PageError(f"{self._name}: reward() is null where done() is true; an episode that ends needs a number from 0 to 1")
            won = reward > 0 and reward >= self._success_at - ROUNDING
            return Transition(observation=None, reward=reward - before, outcome="success" if won else "failure")

    def propose(self, n: int) -> str:
        """Mostly a click on something of the page; sometimes text, a key, a scroll, time, or a point anywhere."""
        return propose(self._now, n, "body *")

    def solve(self) -> str | None:
        """The first of the actions that the page's `solve()` returns."""
        found = self._solution()
        if found is None or found["first"] is None:
            return None
        if parse_action(found["first"]) is None:
            raise PageError(f"{self._name}: solve() begins with {found['first']}, which is no action (docs/environments.md lists them)")
        return found["first"]

    def optimum(self) -> Optimum | None:
        """A reward of 1 in as many turns as `solve()` returns actions; None for a page without it."""
        found = self._solution()
        return None if found is None else Optimum(reward=1.0, turns=found["count"])

    # ---- the functions of the page ---------------------------------------------------------------------------------

    def _begin(self, arguments: list[Any]) -> None:
        """Call `reset`, and wait for its promise. What it waits for is loaded, and time passes where it waits for a timer."""
        page, passed, end = self._now, 0.0, time.monotonic() + self._patience
        page.run(f"__page.begin({json.dumps(arguments)})")
        while True:
            looked = page.run("__page.begun()")
            self._sound("in reset(seed)")  # before what it raised: a request that was blocked is why
            if looked["over"] is not None:
                break
            if page.loading:
                page.settle()
            elif looked["due"] is not None and passed + looked["due"] <= RESET_MS:
                passed += looked["due"]
                page.advance(looked["due"])
            elif looked["due"] is None and time.monotonic() < end:
                time.sleep(_PAUSE)
            else:
                took = f"{RESET_MS} ms of the page's time" if looked["due"] is not None else f"{self._patience:g} seconds"
                raise PageError(f"{self._name}: reset(seed) is not finished after {took}; see what its promise waits for")
        came = self._came("reset", looked["over"])
        if came["kind"] not in ("string", "undefined", "null") or (came.get("inside") and came["kind"] != "string"):
            which = "an instruction that is " if came.get("inside") else ""
            raise PageError(f"{self._name}: reset(seed) returned {which}{came['told']}; return a text, {{instruction: text}}, or nothing")
        self._instruction = came["value"] or ""

    def _done(self) -> bool:
        came = self._came("done", self._now.run("__page.done()"))
        if came["kind"] != "boolean":
            raise PageError(f"{self._name}: done() returned {came['told']}; return true or false")
        return came["value"]

    def _reward(self) -> float | None:
        came = self._came("reward", self._now.run("__page.reward()"))
        if came["kind"] == "null":
            return None
        value = came["value"]
        if came["kind"] != "number" or value is None or not -ROUNDING <= value <= 1 + ROUNDING:
            raise PageError(f"{self._name}: reward() returned {came['told']}; return a number from 0 to 1, or null while there is none")
        return min(1.0, max(0.0, float(value)))

    def _solution(self) -> dict[str, Any] | None:
        """What `solve()` returns: how many actions, and the first as text. None for a page without it."""
        with self._dropped():
            came = self._now.run("__page.solve()")
            if came is None:
                return None
            came = self._came("solve", came)
            if came["kind"] == "none":
                raise PageError(f"{self._name}: solve(): there is no element '{came['told']}' on the page; name one by a CSS selector")
            if came["kind"] != "list":
                raise PageError(f"{self._name}: solve() returned {came['told']}; return a list of actions")
            return came

    def _came(self, name: str, came: dict[str, Any]) -> dict[str, Any]:
        """What a function returned.

        Raises:
            PageError: it raised, or it is gone.
        """
        if "absent" in came:
            raise self._absent(name, came["absent"])
        if "raised" in came:
            raise PageError(f"{self._name}: {name}() raised {_where(came['raised'])}")
        return came

    def _absent(self, name: str, found: str) -> PageError:
        form = {"reset": "function reset(seed) { ... }", "reward": "function reward() { ... }", "done": "function done() { ... }"}
        return PageError(
            f"{self._name}: window.{name} is {found}, not a function; write {form.get(name, name)} in a script, or in a module "
            f"window.{name} = {name}"
        )

    def _sound(self, when: str) -> None:
        """
        Raises:
            PageError: a script of the page raised, or it asked for what is not in the folder.
        """
        page = self._now
        raised = [*page.errors, *page.run("__clock.errors")]
        if page.lacking:
            asked = page.lacking[0]
            if asked.startswith(ORIGIN) and self._files.serve(asked) is None:
                raise PageError(f"{self._name}: it asks for {asked.removeprefix(ORIGIN)}, which is not in the folder; add the file")
            if asked.startswith(ORIGIN):
                raise PageError(f"{self._name}: it shows {asked.removeprefix(ORIGIN)} in a frame; put what is in it into the page itself")
            raise PageError(
                f"{self._name}: it asks for {asked}, which is outside the folder and was blocked; put what it needs into the folder and "
                "name it by a relative path"
            )
        if raised:
            raise PageError(f"{self._name}: a script raised {when}: {_where(raised[0])}")

    def _observe(self) -> Observation:
        page = self._now
        screen = page.screenshot()
        told = self._came("state", page.run("__page.hidden()") or {"kind": "json", "value": None})
        if told["kind"] != "json":
            raise PageError(f"{self._name}: state() returned {told['told']}; return what JSON can write")
        self._sound("while it was drawn")
        parts = [f"Task: {self._instruction}"] if self._instruction else []
        state = None if told["value"] is None else hashlib.sha256(screen + b"\0" + told["value"].encode()).hexdigest()[:32]
        return Observation(text="\n".join([*parts, EXPLANATION] if self._explain else parts), screens=(screen,), state=state)

    @contextmanager
    def _dropped(self) -> Iterator[None]:
        """After a failure inside, drop the page, which is worth nothing any more; and a browser that cannot even close it."""
        try:
            yield
        except PageError:
            self._drop()
            raise
        except BrowserError as error:
            self._drop()
            raise BrowserError(f"{self._name}: {error}") from error


def _where(raised: str) -> str:
    """An error of a script in one line: what it says, and the file and line that it comes from."""
    said, *stack = [line.strip() for line in raised.splitlines()] or [""]
    first = next((line for line in stack if ORIGIN in line), "")
    place = first[first.index(ORIGIN) + len(ORIGIN) :].rstrip(")") if first else ""
    return said + (f" ({place})" if place else "")


def _check(
    *, width: int = 320, height: int = 240, success_at: float = 1.0, action_ms: int = 100, wait_ms: int = 1000, patience: float = 8.0
) -> None:
    """
    Raises:
        ConfigError: a side, a share or a time that is none.
    """
    if not 0 <= success_at <= 1:
        raise ConfigError(f"environment 'web_page': success_at {success_at:g}: it is a reward from 0 to 1")
    if not all(SIDES[0] <= side <= SIDES[1] for side in (width, height)):
        raise ConfigError(f"environment 'web_page': a screen of {width} x {height}: each side has {SIDES[0]} to {SIDES[1]} pixels")
    if action_ms < 1 or wait_ms < 1 or patience <= 0:
        raise ConfigError(f"environment 'web_page': action_ms {action_ms}, wait_ms {wait_ms}, patience {patience}: they must be above 0")


def _tasks(folder: str, *, explain: bool = True, sandbox: bool = True, **others: Any) -> tuple[Mapping[str, Any], ...]:
    _check(**others)
    read_page(folder)
    return ({"id": Path(folder).name or "page"},)


@environment("web_page", tasks=_tasks, missing=missing_browser)
def web_page(
    *,
    folder: str,
    width: int = 320,
    height: int = 240,
    explain: bool = True,
    success_at: float = 1.0,
    action_ms: int = 100,
    wait_ms: int = 1000,
    patience: float = 8.0,
    sandbox: bool = True,
) -> WebPage:
    """A page of your own in Chromium: a folder with an index.html that defines reset(seed), reward() and done(). Needs a browser.

    Args:
        folder: of the page, relative to the working directory. All that the page loads is in it.
        width: of the screen in pixels.
        height: of the screen in pixels.
        explain: whether the text says how actions are written.
        success_at: least last reward of a success.
        action_ms: time of the page that an action takes.
        wait_ms: time of the page that the action `wait` takes.
        patience: seconds that the browser may take for one thing; then the page is lost, and the episode is tried again. Less than the
            deadline of a step.
        sandbox: whether pages run in Chromium's sandbox; never for root, where it does not work.

    Raises:
        ConfigError: a folder without a page, a side or a time that is none.
        BrowserError: the browser does not start.
    """
    _check(width=width, height=height, success_at=success_at, action_ms=action_ms, wait_ms=wait_ms, patience=patience)
    return WebPage(
        folder,
        width=width,
        height=height,
        explain=explain,
        success_at=success_at,
        action_ms=action_ms,
        wait_ms=wait_ms,
        patience=patience,
        sandbox=sandbox,
    )
