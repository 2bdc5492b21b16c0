"""Environment `browsergym`: a bridge to BrowserGym (arXiv:2412.05467), for any task that it registers: MiniWoB, WebArena, WorkArena, ...

What it needs of BrowserGym 0.14 is `gymnasium.make("browsergym/<task>")`, `reset(seed)`, `step(code)` and of the observation `screenshot`,
`goal_object`, `chat_messages`, `last_action_error`, `axtree_object` and `extra_element_properties`. Tested against a recorded exchange, and
against the real one on tasks of `browsergym-miniwob` where that is installed; never on the benchmarks that need servers.

With `actions: pixels` the policy writes actions of `metrics.gui`, coordinates 0 to 1000 of the screen, which become BrowserGym's own calls:
nothing of its text is run. With `actions: calls` it writes these calls itself, `click('a51')`, of the subsets that are named; BrowserGym's
parser takes literals only. An action that fails in the page (nothing there, time out) is told to the policy in the next observation.

A page of BrowserGym has a clock and a network: the same actions need not show the same screens (`deterministic=False`), and an episode
whose worker was lost may end in the fault `drift`.
"""

from __future__ import annotations

import base64
import importlib
import importlib.metadata
import importlib.util
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vlmrl.extras.agents.browser.page import KEYS, MODIFIERS
from vlmrl.extras.agents.gui import pixel, read_key
from vlmrl.extras.agents.protocol import Observation, Transition
from vlmrl.extras.toy.picture import png
from vlmrl.metrics.gui import Action, parse_action
from vlmrl.protocols import environment

VERSION = "1"
PREFIX = "browsergym/"
INSTALL = "pip install 'vlmrl[browsergym]' && playwright install chromium"
SCREEN_SHARE = 0.5
"""Of the screen, that one scroll moves by."""
LONGEST_TEXT = 500
"""Characters that one action types; more is no action."""
_SEEDS = 1 << 32
EXPLANATION = (
    'Answer with one action as JSON: {"action": "click", "coordinate": [x, y]} (also double_click, right_click, hover, press, release), '
    '{"action": "type", "text": "..."}, {"action": "key", "text": "ctrl+a"}, {"action": "scroll", "direction": "down"}, '
    '{"action": "back"}, {"action": "wait"}, {"action": "answer", "text": "..."} to tell the user something, {"action": "complete"} when '
    'the task is done, or {"action": "impossible"}. Coordinates go from 0 to 1000 along each side.'
)
_POINTING = {
    "click": "mouse_click({x}, {y})",
    "double_click": "mouse_dblclick({x}, {y})",
    "right_click": "mouse_click({x}, {y}, 'right')",
    "hover": "mouse_move({x}, {y})",
    "press": "mouse_down({x}, {y})",
    "release": "mouse_up({x}, {y})",
}
_HELD = {MODIFIERS["ctrl"]: "Control", MODIFIERS["alt"]: "Alt", MODIFIERS["meta"]: "Meta", MODIFIERS["shift"]: "Shift"}
_PIXEL_SUBSETS = ("coord", "nav", "chat", "infeas")


def missing() -> str | None:
    """What is not installed, and the command that installs it."""
    if importlib.util.find_spec("browsergym") is None or importlib.util.find_spec("browsergym.core") is None:
        return f"the package browsergym-core, and its browser; install: {INSTALL}"
    kept = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    if not any(kept.glob("chromium*")):
        return f"the browser of playwright, in {kept}; install: playwright install chromium"
    return None


def sent_as(action: Action, size: tuple[int, int]) -> str | None:
    """An action as BrowserGym's calls, for a screen of (height, width) pixels; None for one that it does not have."""
    height, width = size
    at = None if action.point is None else pixel(action.point, width, height)
    if action.point is not None and at is None:
        return None
    if action.kind in _POINTING:
        return None if at is None else _POINTING[action.kind].format(x=at[0], y=at[1])
    if action.kind == "input_text":
        if not action.text or len(action.text) > LONGEST_TEXT:
            return None
        clicked = "" if at is None else f"mouse_click({at[0]}, {at[1]})\n"
        return f"{clicked}keyboard_type({action.text!r})"
    if action.kind in ("key", "hotkey", "enter"):
        pressed = read_key("enter" if action.kind == "enter" else action.text or "")
        return None if pressed is None else f"keyboard_press({_key(*pressed)!r})"
    if action.kind == "scroll":
        dx, dy = int(width * SCREEN_SHARE), int(height * SCREEN_SHARE)
        by = {"down": (0, dy), "up": (0, -dy), "right": (dx, 0), "left": (-dx, 0)}.get(action.direction or "")
        x, y = at or (width // 2, height // 2)
        return None if by is None else f"scroll_at({x}, {y}, {by[0]}, {by[1]})"
    if action.kind == "answer":
        return None if action.text is None else f"send_msg_to_user({action.text!r})"
    said = {
        "wait": "noop(1000)",
        "navigate_back": "go_back()",
        "complete": "send_msg_to_user('Done.')",
        "impossible": f"report_infeasible({action.text or 'The task cannot be done.'!r})",
    }
    return said.get(action.kind)


def _key(name: str, modifiers: int) -> str:
    """A key with what is held, as playwright names it."""
    named = KEYS[name][0] if name in KEYS else name
    return "+".join([*(said for held, said in _HELD.items() if modifiers & held), {" ": "Space"}.get(named, named)])


class BrowserGym:
    """See the top of the file."""

    def __init__(
        self, *, actions: Literal["pixels", "calls"], subsets: tuple[str, ...], tree: bool, explain: bool, success_at: float, headless: bool
    ):
        """The arguments are those of the environment."""
        self._actions, self._tree, self._explain, self._success_at, self._headless = actions, tree, explain, success_at, headless
        self._core = importlib.import_module("browsergym.core")
        self._gym = importlib.import_module("gymnasium")
        highlevel = importlib.import_module("browsergym.core.action.highlevel")
        named = list(_PIXEL_SUBSETS if actions == "pixels" else subsets)
        self._set: Any = highlevel.HighLevelActionSet(subsets=named, strict=False, multiaction=actions == "pixels")
        with _children():
            self._core._get_global_playwright()
        self._env: Any = None
        self._seen: dict[str, Any] = {}

    @property
    def identity(self) -> Mapping[str, str]:
        versions = {
            found.metadata["Name"]: found.version
            for found in importlib.metadata.distributions()
            if (found.metadata["Name"] or "").startswith(("browsergym", "playwright"))
        }
        return {"environment": "browsergym", "version": VERSION, "actions": self._actions, **dict(sorted(versions.items()))}

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """An episode of `task["task"]`, for example `miniwob.click-test`, with `task["task_kwargs"]` where it takes some.

        Raises:
            ValueError: the task names none that BrowserGym has.
        """
        name, more = task.get("task"), task.get("task_kwargs")
        if not isinstance(name, str) or not isinstance(more, Mapping | None):
            raise ValueError(
                f"browsergym: task {task.get('id')!r}: it needs a 'task', for example miniwob.click-test, and task_kwargs is an object"
            )
        self.close()
        name = name.removeprefix(PREFIX)
        _register(name)
        given: dict[str, Any] = {} if more is None else {"task_kwargs": dict(more)}
        try:
            self._env = self._gym.make(
                PREFIX + name,
                disable_env_checker=True,
                headless=self._headless,
                wait_for_user_message=False,
                action_mapping=self._set.to_python_code,
                **given,
            )
        except self._gym.error.UnregisteredEnv as error:
            raise ValueError(
                f"browsergym: task {task.get('id')!r}: {name!r} is no task of the packages that are installed: {error}"
            ) from error
        with self._or_closed():
            self._seen, _ = self._env.reset(seed=seed % _SEEDS)
            return self._observe()

    def step(self, action: str) -> Transition:
        """Act. What cannot be read is not sent."""
        if self._env is None:
            raise RuntimeError("browsergym: a step outside an episode")
        code, ends = self._read(action)
        if code is None:
            return Transition(observation=self._observe(), outcome="invalid")
        with self._or_closed():
            self._seen, reward, terminated, truncated, _ = self._env.step(code)
        reward = float(reward)
        if terminated or truncated or ends:
            self.close()
            return Transition(observation=None, reward=reward, outcome="success" if 0 < reward >= self._success_at else "failure")
        return Transition(observation=self._observe(), reward=reward)

    def close(self) -> None:
        """Close the episode's browser. Its driver is kept for the other environments of this process."""
        env, self._env, self._seen = self._env, None, {}
        if env is not None:
            env.close()

    @contextmanager
    def _or_closed(self) -> Iterator[None]:
        """A failure ends the episode's browser. Where not even that works the driver is lost, and a process cannot start it twice."""
        try:
            yield
        except Exception:
            try:
                self.close()
            except Exception as error:  # noqa: BLE001 (whatever it is, this process is of no use any more, and its parent notices)
                sys.stderr.write(f"browsergym: the driver of the browser is lost: {error}\n")
                sys.stderr.flush()
                os._exit(1)
            raise

    def propose(self, n: int) -> str:
        """A click on something of the page; sometimes a key, a scroll, or time."""
        if self._actions == "calls":
            return "noop(100)"
        height, width = self._seen["screenshot"].shape[:2]
        boxes = [one["bbox"] for one in self._seen["extra_element_properties"].values() if one["bbox"] and one["clickable"]]
        if n % 4 == 3 or not boxes:
            others = ['{"action": "key", "text": "Tab"}', '{"action": "scroll", "direction": "down"}', '{"action": "wait"}']
            return others[n // 4 % 3]
        x, y, wide, high = boxes[n // 4 % len(boxes)]
        point = [min(1000, max(0, round(1000 * at / side))) for at, side in ((x + wide / 2, width), (y + high / 2, height))]
        return f'{{"action": "click", "coordinate": {point}}}'

    def _read(self, action: str) -> tuple[str | None, bool]:
        """(what is sent, None for nothing; whether the policy says that it is done)."""
        if self._actions == "pixels":
            parsed = parse_action(action)
            code = None if parsed is None else sent_as(parsed, self._seen["screenshot"].shape[:2])
            return code, parsed is not None and parsed.kind in ("complete", "impossible")
        try:
            self._set.to_python_code(action)
        except (ValueError, NameError, SyntaxError, RecursionError):  # no call, several, or one of another subset
            return None, False
        return action, False

    def _observe(self) -> Observation:
        """The task with its pictures, what came of the last action, what the user said, and the screen."""
        seen = self._seen
        goal = seen["goal_object"]
        parts = [f"Task: {' '.join(one['text'] for one in goal if one['type'] == 'text')}"]
        if self._explain:
            parts.append(EXPLANATION if self._actions == "pixels" else self._set.describe(with_long_description=False, with_examples=True))
        said = [one["message"] for one in seen["chat_messages"] if one["role"] == "user"][1:]
        parts += [f"The user said: {one}" for one in said]
        if seen["last_action_error"]:
            parts.append(f"The last action failed: {seen['last_action_error']}")
        if self._tree:
            flatten = importlib.import_module("browsergym.utils.obs").flatten_axtree_to_str
            parts.append(flatten(seen["axtree_object"], seen["extra_element_properties"]))
        pixels = np.ascontiguousarray(seen["screenshot"][..., :3], dtype=np.uint8)
        return Observation(text="\n".join(parts), screens=(*map(_picture, _pictures(goal)), png(pixels)))


def _pictures(goal: Any) -> Iterator[str]:
    for one in goal:
        if one["type"] == "image_url":
            yield one["image_url"]["url"] if isinstance(one["image_url"], Mapping) else one["image_url"]


def _picture(url: str) -> bytes:
    """A picture of a goal; BrowserGym's tasks bring them with them."""
    head, _, data = url.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise ValueError(f"browsergym: the goal's picture is {url[:60]!r}, and not in the goal itself (data:image/...;base64,)")
    return base64.b64decode(data)


def _register(name: str) -> None:
    """Import what registers a task: `browsergym.<benchmark>` for `<benchmark>.<task>`, where there is such a package."""
    benchmark = name.partition(".")[0]
    if benchmark.isidentifier() and importlib.util.find_spec(f"browsergym.{benchmark}") is not None:
        importlib.import_module(f"browsergym.{benchmark}")


@contextmanager
def _children() -> Iterator[None]:
    """What is started here outlives one request, so it does not inherit the worker's limits. The driver hangs under one on memory."""
    limits = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_DATA)}
    for kind, (_, hard) in limits.items():
        resource.setrlimit(kind, (hard, hard))
    try:
        yield
    finally:
        for kind, limit in limits.items():
            resource.setrlimit(kind, limit)


_OPEN = {"id": "open", "task": "openended", "task_kwargs": {"start_url": "about:blank", "goal": "Say that you are done."}}


@environment("browsergym", deterministic=False, missing=missing, tasks=(_OPEN,))
def browsergym(
    *,
    actions: Literal["pixels", "calls"] = "pixels",
    subsets: tuple[str, ...] = ("bid", "nav", "tab", "chat", "infeas"),
    tree: bool = False,
    explain: bool = True,
    success_at: float = 1.0,
    headless: bool = True,
) -> BrowserGym:
    """Any task that BrowserGym registers, in its own Chromium. Tested on its MiniWoB tasks only.

    Args:
        actions: `pixels`: GUI actions as JSON, with coordinates from 0 to 1000; `calls`: BrowserGym's own, such as click('a51').
        subsets: `calls`: which of BrowserGym's sets of actions the policy has.
        tree: whether the text shows the page's accessibility tree, which names the elements that calls need.
        explain: whether the text says how actions are written.
        success_at: least reward, of the turn that ends an episode, of a success; always above 0.
        headless: whether the browser has no window.

    Raises:
        ValueError: calls without a subset, or one that BrowserGym does not have.
    """
    if actions == "calls" and not subsets:
        raise ValueError("environment 'browsergym': actions are calls, and subsets names none; for example [bid, nav, chat, infeas]")
    return BrowserGym(actions=actions, subsets=subsets, tree=tree, explain=explain, success_at=success_at, headless=headless)
