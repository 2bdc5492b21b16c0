"""Environment `miniwob`: the pages of MiniWoB++ (arXiv:1802.08802) in a browser without a window, as pixels of 160 x 210.

Every episode gets a fresh page in a browser context of its own, whose clock stands still while nobody acts: what is seen is a function of
page, seed and actions, and a slow sampler is not a failure. The pages come from memory under one made-up origin, and nothing else can be
reached. The reward is the page's own without its share for speed, once, where the page ends the episode; all of it is a success, as in
the package's `get_binary_reward`. The page's time limit is lifted: only the limit on turns ends an episode that the page does not.

Actions are those of `metrics.gui`, coordinates 0 to 1000 along the sides of the screen in its original size. `press` and `release` hold the
left button from one turn to another, which drags; `key` is one key, with modifiers (`ctrl+a`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from vlmrl.errors import ConfigError
from vlmrl.extras.agents.browser.actions import EXPLANATION, act, propose
from vlmrl.extras.agents.browser.files import Files, read_files
from vlmrl.extras.agents.browser.fonts import drawn_with
from vlmrl.extras.agents.browser.page import OnePage, Page
from vlmrl.extras.agents.browser.pipe import BrowserError
from vlmrl.extras.agents.browser.process import INSTALL, find_browser, missing_browser, shared_browser
from vlmrl.extras.agents.protocol import Observation, Optimum, Outcome, Transition
from vlmrl.metrics.gui import parse_action
from vlmrl.protocols import environment
from vlmrl.rng import key

VERSION = "2"
ORIGIN = "http://miniwob.invalid/"
WIDTH, HEIGHT = 160, 210
MIDDLE = (WIDTH // 2, (HEIGHT + 50) // 2)
"""Of the screen without the line that tells the task: where a scroll without a point is."""
READY = 20
"""Most actions' worth of time that a page may take before it is ready."""

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

ONE_CLICK = (*SETS["click"], "focus-text-2", "grid-coordinate", "identify-shape")
"""Pages that one click solves, which the world knows (`one_click.js`)."""

HIDDEN: Mapping[str, str] = {
    "find-greatest": "[...document.querySelectorAll('.card-value')].map(e => e.textContent)",
    "guess-number": "null",
    "hot-cold": "null",
    "moving-items": "[performance.now(), [...document.querySelectorAll('.item')].map(e => e.outerHTML)]",
    "terminal": "currentFiles",
}
"""Pages whose first screen is the same for different seeds, and what they hide. Some keep it in a closure: the seed stands for it."""

_STYLE = "#click-canvas, #reward-display { display: none !important }"
_NO_QUERY = " #query, #query * { visibility: hidden !important }"
_LOOK = """(() => {
  const said = core.getUtterance();
  return {goal: (said && said.utterance) || said, done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, ready: WOB_TASK_READY};
})()"""

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
def files() -> Files:
    """Every file of the pages."""
    at = folder()
    assert at is not None, "asked for after `names_of`"
    return Files(ORIGIN, read_files(at))


class MiniWob(OnePage):
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
        self._name = ""
        self._seed = 0
        self._done = False

    @property
    def identity(self) -> Mapping[str, str]:
        return {
            "environment": "miniwob",
            "version": VERSION,
            "miniwob": importlib.metadata.version("miniwob"),
            "pages": files().digest,
            "browser": self._browser.version,
            "fonts": drawn_with(self._browser),
            "screen": f"{WIDTH}x{HEIGHT}",
        }

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """A page with a problem of this seed. `task["page"]`: which; where it is not given, one of the environment's by the seed."""
        name = task.get("page") or self._pages[key(seed, "miniwob", "page") % len(self._pages)]
        if files().serve(_url(name)) is None:
            raise ValueError(f"miniwob: the task's page is {name!r}, which is not there")
        used = self._page is not None and self._name == name and not self._fresh_page
        self._seed, self._name, self._done = seed, name, False
        try:
            if used:
                self._now.run("core.endEpisode(0); 1")
            else:
                self.close()
                self._page = Page(self._browser, files().serve, width=WIDTH, height=HEIGHT)
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
            if parsed is None or not act(self._now, parsed, middle=MIDDLE):
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

    def propose(self, n: int) -> str:
        """Mostly a click on something of the page; sometimes text, a key, a scroll, time, or a point anywhere."""
        return propose(self._now, n, "#area *")

    def solve(self) -> str | None:
        """The click that solves the page, where it is one of `ONE_CLICK` and shows what is to be clicked."""
        if self._name not in ONE_CLICK or self._done:
            return None
        point = self._one_click()
        if point is None:
            return None
        x, y = (round(1000 * (place + 0.5) / side) for place, side in zip(point, (WIDTH, HEIGHT), strict=True))
        return json.dumps({"action": "click", "coordinate": [x, y]})

    def right(self, every: int) -> list[list[bool]]:
        """Whether a click on each of the pixels (0, 0), (every, 0), ... solves the page, line by line; for pages of `ONE_CLICK`."""
        return self._one_click(every)

    def _one_click(self, every: int = 0) -> Any:
        return self._now.run(f"({_right()})({json.dumps(self._name)}, {json.dumps(self._now.run(_LOOK)['goal'])}, {every})")

    def optimum(self) -> Optimum | None:
        """One click, on pages that it solves."""
        return Optimum(reward=1.0, turns=1) if self._name in ONE_CLICK else None

    def _ready(self) -> dict[str, Any]:
        """Let time pass until the page says that its problem is there; what it says then."""
        for _ in range(READY):
            self._now.advance(self._action_ms)
            looked = self._now.run(_LOOK)
            if looked["ready"]:
                return looked
        raise BrowserError(f"{self._name} is not ready after {READY * self._action_ms} ms of its time")

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


@functools.cache
def _right() -> str:
    return resources.files("vlmrl.extras.agents").joinpath("one_click.js").read_text(encoding="utf-8")


def outcome_of(reward: float, success_at: float) -> Outcome:
    """What an episode came to that the page ended with this reward."""
    return "success" if reward > 0 and reward >= success_at else "failure"


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
