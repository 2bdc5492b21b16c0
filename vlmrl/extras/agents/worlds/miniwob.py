"""Environment `miniwob`: the pages of MiniWoB++ (arXiv:1802.08802) in a browser without a window, as pixels of 160 x 210.

Every episode gets a fresh page in a browser context of its own, whose clock stands still while nobody acts: what is seen is a function of
page, seed and actions, and a slow sampler is not a failure. The pages come from memory under one made-up origin, and nothing else can be
reached. The reward is the page's own without its share for speed, once, where the page ends the episode; all of it is a success, as in
the package's `get_binary_reward`. The page's time limit is lifted: only the limit on turns ends an episode that the page does not.

Actions are those of `metrics.gui`, coordinates 0 to 1000 along the sides of the screen in its original size. `press` and `release` hold the
left button from one turn to another, which drags; `key` is one key, with modifiers (`ctrl+a`).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from vlmrl.errors import ConfigError
from vlmrl.extras.agents.browser.fonts import drawn_with
from vlmrl.extras.agents.browser.page import Page
from vlmrl.extras.agents.browser.pipe import BrowserError
from vlmrl.extras.agents.browser.process import INSTALL, Browser, find_browser, missing_browser, shared_browser
from vlmrl.extras.agents.gui import pixel, read_key
from vlmrl.extras.agents.protocol import Observation, Outcome, Transition
from vlmrl.metrics.gui import Action, parse_action
from vlmrl.protocols import environment
from vlmrl.rng import key

VERSION = "2"
ORIGIN = "http://miniwob.invalid/"
WIDTH, HEIGHT = 160, 210
LONGEST_TEXT = 500
"""Characters that one action types; more is no action."""
SCROLL = 100
"""Pixels of one scroll."""
READY = 20
"""Most actions' worth of time that a page may take before it is ready."""
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".png": "image/png", ".gif": "image/gif"}

SETS: Mapping[str, tuple[str, ...]] = {
    "click": (
        "click-button",
        "click-color",
        "click-dialog",
        "click-dialog-2",
        "click-link",
        "click-shape",
        "click-test",
        "click-test-2",
        "click-widget",
        "focus-text",
    ),
    "form": (
        "click-checkboxes",
        "click-option",
        "enter-password",
        "enter-text",
        "enter-text-2",
        "enter-text-dynamic",
        "focus-text-2",
        "login-user",
    ),
}
"""Pages by name: `click` are done with one click, `form` are filled in and sent."""

HIDDEN: Mapping[str, str] = {
    "find-greatest": "[...document.querySelectorAll('.card-value')].map(e => e.textContent)",
    "guess-number": "null",
    "hot-cold": "null",
    "moving-items": "[performance.now(), [...document.querySelectorAll('.item')].map(e => e.outerHTML)]",
    "terminal": "currentFiles",
}
"""Pages whose first screen is the same for different seeds, and what they hide. Some keep it in a closure: the seed stands for it."""

EXPLANATION = (
    'Answer with one action as JSON: {"action": "click", "coordinate": [x, y]} (also double_click, right_click, hover, press, release), '
    '{"action": "type", "text": "..."}, {"action": "key", "text": "ctrl+a"}, {"action": "scroll", "direction": "down"} or '
    '{"action": "wait"}. Coordinates go from 0 to 1000 along each side.'
)
_STYLE = "#click-canvas, #reward-display { display: none !important }"
_STYLE_URL = re.compile(rb"""url\((['"]?)([^'")]+)\1\)""")
_NO_QUERY = " #query, #query * { visibility: hidden !important }"
_LOOK = """(() => {
  const said = core.getUtterance();
  return {goal: (said && said.utterance) || said, done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, ready: WOB_TASK_READY};
})()"""
_PLACES = """(() => [...document.querySelectorAll('#area *')].map(e => [e, e.getBoundingClientRect()])
  .filter(([e, r]) => r.width > 0 && r.height > 0 && !['OPTION', 'SCRIPT', 'STYLE'].includes(e.tagName))
  .map(([e, r]) => [r.x + r.width / 2, r.y + r.height / 2]).filter(([x, y]) => x >= 0 && y >= 0 && x < WIDTH && y < HEIGHT))()"""

Goal = Literal["screen", "text", "both"]


@functools.cache
def folder() -> Path | None:
    """Of the pages that the package `miniwob` brings; None where it is not installed. The package is not imported."""
    found = importlib.util.find_spec("miniwob")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "html"


def missing() -> str | None:
    """What is not installed, and the command that installs it."""
    lacks = [name for name, there in (("the pages", folder() is not None), ("a browser", find_browser() is not None)) if not there]
    if not lacks:
        return None
    commands = {"the pages": "pip install 'vlmrl[miniwob]'", "a browser": INSTALL}
    told = missing_browser()
    named = f" ({told})" if told is not None and "names" in told else ""
    return f"{' and '.join(lacks)}{named}; install: {' && '.join(commands[name] for name in lacks)}"


def names_of(pages: list[str] | str) -> tuple[str, ...]:
    """The pages that are meant: `all`, a name of `SETS`, names with commas between them, or a list of names.

    Raises:
        ConfigError: a page that is not there, or none at all; the pages are not installed.
    """
    at = folder()
    if at is None:
        raise ConfigError(f"environment 'miniwob': {missing()}")
    known = tuple(sorted(path.stem for path in (at / "miniwob").glob("*.html")))
    if pages == "all":
        return known
    asked = list(SETS.get(pages, pages.split(","))) if isinstance(pages, str) else pages
    wrong = [name for name in asked if name not in known]
    if wrong or not asked:
        sets = ", ".join(SETS)
        raise ConfigError(f"environment 'miniwob': pages: no page {wrong or 'at all'}; known: all, {sets}, and {', '.join(known)}")
    return tuple(asked)


@functools.cache
def contents() -> Mapping[str, bytes]:
    """Every file of the pages, by its path."""
    at = folder()
    assert at is not None, "asked for after `names_of`"
    return {path.relative_to(at).as_posix(): path.read_bytes() for path in sorted(at.rglob("*")) if path.is_file()}


def serve(url: str) -> tuple[bytes, str] | None:
    """What lies under the origin."""
    if not url.startswith(ORIGIN):
        return None
    path = url.removeprefix(ORIGIN).partition("?")[0].partition("#")[0]
    found = contents().get(path)
    if found is None:
        return None
    return styled(path, found), TYPES.get(Path(path).suffix, "application/octet-stream")


def styled(path: str, content: bytes) -> bytes:
    """A page or a style sheet with the pictures of its styles in it.

    A style that comes with the pointer (`:hover`) would load its picture then, and until it is there the element has no size: what lies
    under the pointer would depend on how fast the machine is.
    """
    if Path(path).suffix not in (".html", ".css"):
        return content

    def picture(found: re.Match[bytes]) -> bytes:
        named = found[2].decode("utf-8", "replace").partition("?")[0]
        at = posixpath.normpath(posixpath.join(posixpath.dirname(path), named))
        kind = TYPES.get(Path(at).suffix, "")
        if at not in contents() or not kind.startswith("image/"):
            return found[0]
        return b"url(data:%s;base64,%s)" % (kind.encode(), base64.b64encode(contents()[at]))

    return _STYLE_URL.sub(picture, content)


@functools.cache
def _pages_hash() -> str:
    every = hashlib.sha256()
    for path, content in contents().items():
        every.update(f"{path}\0{len(content)}\0".encode() + content)
    return every.hexdigest()[:16]


_fonts: dict[Browser, str] = {}


class MiniWob:
    """See the top of the file."""

    def __init__(
        self,
        pages: tuple[str, ...],
        *,
        goal: Goal = "both",
        explain: bool = True,
        success_at: float = 1.0,
        fresh_page: bool = True,
        action_ms: int = 100,
        wait_ms: int = 1000,
        patience: float = 8.0,
        sandbox: bool = True,
    ):
        """The arguments are those of the environment."""
        self._success_at = success_at
        self._pages, self._goal, self._explain, self._fresh_page = pages, goal, explain, fresh_page
        self._action_ms, self._wait_ms = action_ms, wait_ms
        self._browser = shared_browser(seconds=patience, sandbox=sandbox)
        if self._browser not in _fonts:
            _fonts[self._browser] = drawn_with(self._browser)
        self._page: Page | None = None
        self._name = ""
        self._seed = 0
        self._done = False

    @property
    def identity(self) -> Mapping[str, str]:
        return {
            "environment": "miniwob",
            "version": VERSION,
            "miniwob": importlib.metadata.version("miniwob"),
            "pages": _pages_hash(),
            "browser": self._browser.version,
            "fonts": _fonts[self._browser],
            "screen": f"{WIDTH}x{HEIGHT}",
        }

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """A page with a problem of this seed. `task["page"]`: which; where it is not given, one of the environment's by the seed."""
        name = task.get("page") or self._pages[key(seed, "miniwob", "page") % len(self._pages)]
        if serve(_url(name)) is None:
            raise ValueError(f"miniwob: the task's page is {name!r}, which is not there")
        used = self._page is not None and self._name == name and not self._fresh_page
        self._seed, self._name, self._done = seed, name, False
        try:
            if used:
                self._now.run("core.endEpisode(0); 1")
            else:
                self.close()
                self._page = Page(self._browser, serve, width=WIDTH, height=HEIGHT)
                self._page.open(_url(name))
                style = _STYLE + (_NO_QUERY if self._goal == "text" else "")
                self._page.run(
                    f"(() => {{ const s = new CSSStyleSheet(); s.replaceSync({json.dumps(style)}); "
                    "document.adoptedStyleSheets = [...document.adoptedStyleSheets, s]; })()"
                )
            self._now.run(f"core.EPISODE_MAX_TIME = 2e9; Math.seedrandom({json.dumps(str(seed))}); core.startEpisodeReal(); 1")
            return self._observe(self._ready()["goal"])
        except BrowserError:
            self._drop()
            raise

    def step(self, action: str) -> Transition:
        """Act, and let the page's clock run. What cannot be read does nothing, and costs the page no time."""
        if self._done:
            raise RuntimeError("miniwob: a step after the end of the episode")
        parsed = parse_action(action)
        try:
            if parsed is None or not self._act(parsed):
                return Transition(observation=self._observe(self._now.run(_LOOK)["goal"]), outcome="invalid")
            self._now.advance(self._wait_ms if parsed.kind == "wait" else self._action_ms)
            looked = self._now.run(_LOOK)
            if looked["done"]:
                # what is shown now is the cover of the next episode
                self._done = True
                reward = float(looked["reward"])
                return Transition(observation=None, reward=reward, outcome=outcome_of(reward, self._success_at))
            return Transition(observation=self._observe(looked["goal"]))
        except BrowserError:
            self._drop()
            raise

    def close(self) -> None:
        """Drop the page. The browser is kept for the other environments of this process."""
        if self._page is not None:
            page, self._page = self._page, None
            page.close()

    def propose(self, n: int) -> str:
        """Mostly a click on something of the page; sometimes text, a key, a scroll, time, or a point anywhere."""
        kind = n % 8
        if kind == 5:
            return json.dumps({"action": "type", "text": ("abc", "7", "a b")[n // 8 % 3]})
        if kind == 6:
            others = [{"action": "key", "text": "Tab"}, {"action": "scroll", "direction": "down"}, {"action": "wait"}]
            return json.dumps(others[n // 8 % 3])
        places = self._now.run(_PLACES.replace("WIDTH", str(WIDTH)).replace("HEIGHT", str(HEIGHT)))
        if kind == 7 or not places:
            return _click([n // 8 % 1001, n // 8009 % 1001])
        x, y = places[n // 8 % len(places)]
        return _click([round(1000 * x / WIDTH), round(1000 * y / HEIGHT)])

    @property
    def _now(self) -> Page:
        if self._page is None:
            raise RuntimeError("miniwob: no episode is running")
        return self._page

    def _ready(self) -> dict[str, Any]:
        """Let time pass until the page says that its problem is there; what it says then."""
        for _ in range(READY):
            self._now.advance(self._action_ms)
            looked = self._now.run(_LOOK)
            if looked["ready"]:
                return looked
        raise BrowserError(f"{self._name} is not ready after {READY * self._action_ms} ms of its time")

    def _drop(self) -> None:
        """After a failure: the page is worth nothing any more; nor is a browser that cannot even close it."""
        try:
            self.close()
        except BrowserError:
            self._browser.close()

    def _observe(self, goal: str) -> Observation:
        page = self._now
        screen = page.screenshot()
        parts = [] if self._goal == "screen" else [f"Task: {goal}"]
        if self._explain:
            parts.append(EXPLANATION)
        state = None
        if self._name in HIDDEN:
            hidden = json.dumps([self._seed, page.run(HIDDEN[self._name])])
            state = hashlib.sha256(screen + b"\0" + hidden.encode()).hexdigest()[:32]
        return Observation(text="\n".join(parts), screens=(screen,), state=state)

    def _act(self, action: Action) -> bool:
        """Do it; False where it is no action of this world, or lacks something."""
        page, kind = self._now, action.kind
        at = None if action.point is None else pixel(action.point, WIDTH, HEIGHT)
        if action.point is not None and at is None:
            return False
        if kind in _POINTING:
            if at is None:
                return False
            _POINTING[kind](page, *at)
        elif kind == "input_text":
            if not action.text or len(action.text) > LONGEST_TEXT:
                return False
            if at is not None:
                page.click(*at)
            page.type(action.text)
        elif kind in ("key", "hotkey", "enter"):
            pressed = read_key("enter" if kind == "enter" else action.text or "")
            if pressed is None:
                return False
            page.key(*pressed)
        elif kind == "scroll":
            if action.direction not in _DIRECTIONS:
                return False
            x, y = at or (WIDTH // 2, (HEIGHT + 50) // 2)
            page.scroll(x, y, *_DIRECTIONS[action.direction])
        else:
            return kind == "wait"
        return True


def outcome_of(reward: float, success_at: float) -> Outcome:
    """What an episode came to that the page ended with this reward."""
    return "success" if reward > 0 and reward >= success_at else "failure"


_DIRECTIONS = {"down": (0, SCROLL), "up": (0, -SCROLL), "right": (SCROLL, 0), "left": (-SCROLL, 0)}


def _press(page: Page, x: int, y: int) -> None:
    page.mouse("mouseMoved", x, y)
    page.mouse("mousePressed", x, y, button="left", count=1)


def _release(page: Page, x: int, y: int) -> None:
    page.mouse("mouseMoved", x, y)
    page.mouse("mouseReleased", x, y, button="left", count=1)


_POINTING = {
    "click": lambda page, x, y: page.click(x, y),
    "double_click": lambda page, x, y: page.click(x, y, count=2),
    "right_click": lambda page, x, y: page.click(x, y, button="right"),
    "hover": lambda page, x, y: page.mouse("mouseMoved", x, y),
    "press": _press,
    "release": _release,
}


def _click(point: list[int]) -> str:
    return json.dumps({"action": "click", "coordinate": point})


def _url(name: str) -> str:
    return f"{ORIGIN}miniwob/{name}.html"


def _tasks(pages: list[str] | str = "all", **others: object) -> tuple[Mapping[str, Any], ...]:
    return tuple({"id": name, "page": name} for name in names_of(pages))


@environment("miniwob", tasks=_tasks, missing=missing)
def miniwob(
    *,
    pages: list[str] | str = "all",
    goal: Goal = "both",
    explain: bool = True,
    success_at: float = 1.0,
    fresh_page: bool = True,
    action_ms: int = 100,
    wait_ms: int = 1000,
    patience: float = 8.0,
    sandbox: bool = True,
) -> MiniWob:
    """The pages of MiniWoB++ in Chromium: buttons, forms, mails, small games, as pixels. Needs a browser and the package `miniwob`.

    Args:
        pages: which: `all`, a set (`click`, `form`), or names, in a list or with commas. A task without a page gets one by its seed.
        goal: where the task is told: on the screen as the page draws it, as text only, or both. The text may tell what the screen only
            shows (`click-color` draws the colour).
        explain: whether the text says how actions are written.
        success_at: least reward of a success. 1 is that of the package `miniwob` (`get_binary_reward`) and of most publications; 0, where
            all above 0 is one, that of BrowserGym.
        fresh_page: False runs one episode after the other in one page, as others do, and then screens depend on the episodes before. It is
            there to show just that.
        action_ms: time of the page that an action takes.
        wait_ms: time of the page that the action `wait` takes.
        patience: seconds that the browser may take for one thing; then the page is lost, and the episode is tried again. Less than the
            deadline of a step.
        sandbox: whether pages run in Chromium's sandbox; never for root, where it does not work.

    Raises:
        ConfigError: a page that is not there, or a time that is none.
        BrowserError: the browser does not start.
    """
    if not 0 <= success_at <= 1:
        raise ConfigError(f"environment 'miniwob': success_at {success_at:g}: it is a reward from 0 to 1")
    if action_ms < 1 or wait_ms < 1 or patience <= 0:
        raise ConfigError(f"environment 'miniwob': action_ms {action_ms}, wait_ms {wait_ms}, patience {patience}: they must be above 0")
    return MiniWob(
        names_of(pages),
        goal=goal,
        explain=explain,
        success_at=success_at,
        fresh_page=fresh_page,
        action_ms=action_ms,
        wait_ms=wait_ms,
        patience=patience,
        sandbox=sandbox,
    )
