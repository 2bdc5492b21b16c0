"""Environment `osworld`: a bridge to the desktops of OSWorld (arXiv:2404.07972), virtual machines that its `DesktopEnv` starts and scores.

Tested against a stand-in of `desktop_env` of our own making only, never against a machine: what is asked for is what the source of
`desktop-env` 1.0.2 declares (`desktop_env/desktop_env.py`, `controllers/`). It runs in a Python of its own (`agents.osworld_driver`), since
its pins do not go together with ours; the variable VLMRL_OSWORLD_PYTHON names it.

Actions are those of `metrics.gui`, coordinates 0 to 1000 of the screen; they become calls of pyautogui whose arguments are literals, so
nothing of the policy's text is run. An episode ends when the policy says so (`complete`, `impossible`) or after `score_after` actions, and
is scored then, as OSWorld's runner does it. A task has no seed: all attempts begin at its snapshot.

Every episode has a machine, from its reset to its end. A machine has a clock and a network: the same actions need not show the same
screens (`deterministic=False`), and an episode whose worker was lost ends in the fault `drift`. A driver that is killed leaves its machine.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from vlmrl.extras.agents import osworld_driver
from vlmrl.extras.agents.gui import pixel
from vlmrl.extras.agents.protocol import Observation, Transition
from vlmrl.extras.toy.picture import size_of
from vlmrl.metrics.gui import Action, parse_action
from vlmrl.protocols import environment

VERSION = "1"
VARIABLE = "VLMRL_OSWORLD_PYTHON"
"""Environment variable that names the Python in which OSWorld is installed."""
INSTALL = f"python -m venv osworld && osworld/bin/pip install desktop-env && export {VARIABLE}=$PWD/osworld/bin/python"
SCROLL = 5
"""Clicks of the wheel of one scroll."""
LONGEST_TEXT = 500
"""Characters that one action types; more is no action."""
EXPLANATION = (
    'Answer with one action as JSON: {"action": "click", "coordinate": [x, y]} (also double_click, right_click, hover, press, release), '
    '{"action": "type", "text": "..."}, {"action": "key", "text": "ctrl+c"}, {"action": "scroll", "direction": "down"}, '
    '{"action": "wait"}, {"action": "complete"} when the task is done, or {"action": "impossible"} when it cannot be done. '
    "Coordinates go from 0 to 1000 along each side."
)
_POINTING = {
    "click": "pyautogui.click({x}, {y})",
    "double_click": "pyautogui.doubleClick({x}, {y})",
    "right_click": "pyautogui.rightClick({x}, {y})",
    "hover": "pyautogui.moveTo({x}, {y})",
    "press": "pyautogui.moveTo({x}, {y}); pyautogui.mouseDown()",
    # a drag needs time to be one
    "release": "pyautogui.moveTo({x}, {y}, duration=0.5); pyautogui.mouseUp()",
}
_SCROLLS = {"up": f"scroll({SCROLL})", "down": f"scroll(-{SCROLL})", "right": f"hscroll({SCROLL})", "left": f"hscroll(-{SCROLL})"}
_ENDS = {"complete": "DONE", "impossible": "FAIL"}
_KEYS = {
    *("enter", "tab", "space", "backspace", "delete", "esc", "home", "end", "pageup", "pagedown", "insert", "printscreen", "capslock"),
    *("left", "up", "right", "down", "ctrl", "alt", "shift", "win", *(f"f{n}" for n in range(1, 13))),
}
_KEY_NAMES = {
    "control": "ctrl",
    "return": "enter",
    "escape": "esc",
    "del": "delete",
    "meta": "win",
    "super": "win",
    "cmd": "win",
    "page_up": "pageup",
    "page_down": "pagedown",
    "arrowleft": "left",
    "arrowup": "up",
    "arrowright": "right",
    "arrowdown": "down",
}
"""Other names of keys -> pyautogui's."""


def missing() -> str | None:
    """What is not installed, and the commands that install it."""
    given = os.environ.get(VARIABLE)
    if not given:
        return f"a Python with OSWorld, whose pins do not fit ours; install: {INSTALL}"
    return None if shutil.which(given) else f"{VARIABLE} names '{given}', which is no program; name OSWorld's Python"


def typed(text: str) -> str | None:
    """A text as calls of pyautogui; None where it has a character that cannot be typed. `<` would come out as `>`, and is pressed."""
    if not text or len(text) > LONGEST_TEXT or not all(" " <= one <= "~" or one in "\n\t" for one in text):
        return None

    def calls() -> Iterator[str]:
        for n, part in enumerate(text.split("<")):
            if n:
                yield "pyautogui.hotkey('shift', ',')"
            if part:
                yield f"pyautogui.typewrite({part!r})"

    return "; ".join(calls())


def pressed(text: str) -> str | None:
    """Keys that are pressed together (`ctrl+shift+t`) as a call of pyautogui; None where there is no such key."""
    named = ["+" if one == "" else one.strip().lower() for one in text.strip().removesuffix("+").split("+")] if text.strip() else []
    keys = [_KEY_NAMES.get(one, one) for one in named]
    if not keys or not all(one in _KEYS or (len(one) == 1 and "!" <= one <= "~") for one in keys):
        return None
    return f"pyautogui.press({keys[0]!r})" if len(keys) == 1 else f"pyautogui.hotkey({', '.join(map(repr, keys))})"


def sent_as(action: Action, size: tuple[int, int]) -> str | None:
    """An action as OSWorld's command, for a screen of (width, height) pixels; None for one that it does not have."""
    at = None if action.point is None else pixel(action.point, *size)
    if action.point is not None and at is None:
        return None
    if action.kind in _POINTING:
        return None if at is None else _POINTING[action.kind].format(x=at[0], y=at[1])
    if action.kind == "input_text":
        calls = typed(action.text or "")
        return calls if calls is None or at is None else f"pyautogui.click({at[0]}, {at[1]}); {calls}"
    if action.kind in ("key", "hotkey", "enter"):
        return pressed("enter" if action.kind == "enter" else action.text or "")
    if action.kind == "scroll":
        x, y = at or (size[0] // 2, size[1] // 2)
        return f"pyautogui.moveTo({x}, {y}); pyautogui.{_SCROLLS[action.direction]}" if action.direction in _SCROLLS else None
    return {"wait": "WAIT", **_ENDS}.get(action.kind)


class OSWorld:
    """See the top of the file."""

    def __init__(self, python: str, given: Mapping[str, Any], *, score_after: int, settle: float, pause: float, explain: bool):
        """Start the driver, which starts a machine at the first reset.

        Raises:
            RuntimeError: the driver does not start.
        """
        self._score_after, self._settle, self._pause, self._explain = score_after, settle, pause, explain
        self._given = dict(given)
        replies, end = os.pipe()
        try:
            # a session of its own: a worker that is killed takes its group with it, and the machine has to be given back first
            self._driver = subprocess.Popen(
                [python, osworld_driver.__file__, str(end), json.dumps(self._given)],
                stdin=subprocess.PIPE,
                bufsize=0,
                pass_fds=(end,),
                start_new_session=True,
            )
        except OSError:
            os.close(replies)
            raise
        finally:
            os.close(end)
        self._replies = os.fdopen(replies, "rb")
        self._running, self._taken = False, 0
        self._size, self._goal = (0, 0), ""
        self._last: Mapping[str, Any] = {}
        self._version = str(self._told()["version"])

    @property
    def identity(self) -> Mapping[str, str]:
        screen = "x".join(map(str, self._given["screen_size"]))
        machine = {name: str(self._given[name]) for name in ("provider_name", "os_type", "snapshot_name")}
        return {"environment": "osworld", "version": VERSION, "desktop-env": self._version, **machine, "screen": screen}

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """A machine, set up for `task["example"]`, which is a task of OSWorld as its files have it. The seed decides nothing.

        Raises:
            ValueError: the task has no example, or one without what a task needs.
            RuntimeError: the machine does not start, or cannot be set up.
        """
        example = task.get("example")
        lacks = [name for name in ("id", "instruction", "evaluator") if not isinstance(example, Mapping) or name not in example]
        if lacks or not isinstance(example, Mapping):
            raise ValueError(
                f"osworld: task {task.get('id')!r} needs an 'example', the content of a file of OSWorld's evaluation_examples; "
                f"it lacks {', '.join(lacks)}"
            )
        shown = self._ask({"do": "reset", "example": dict(example), "settle": self._settle})
        self._running, self._taken = True, 0
        self._goal = str(shown["instruction"])
        return self._observe(shown)

    def step(self, action: str) -> Transition:
        """Act. What cannot be read is not sent, and counts as an action all the same."""
        if not self._running:
            raise RuntimeError("osworld: a step outside an episode")
        parsed = parse_action(action)
        command = None if parsed is None else sent_as(parsed, self._size)
        self._taken += 1
        over = self._taken >= self._score_after or command in _ENDS.values()
        shown = self._last if command is None else self._ask({"do": "step", "command": command, "pause": self._pause})
        if not over:
            return Transition(observation=self._observe(shown), outcome="invalid" if command is None else "")
        self._running = False
        score = float(self._ask({"do": "score", "settle": self._pause})["score"])
        return Transition(observation=None, reward=score, outcome="success" if score >= 1 else "failure")

    def close(self) -> None:
        """Let the driver go: it gives the machine back by itself, which takes its time. May be called twice."""
        self._running = False
        if self._driver.stdin is not None and not self._driver.stdin.closed:
            self._driver.stdin.close()
            self._replies.close()
        self._driver.poll()

    def _observe(self, shown: Mapping[str, Any]) -> Observation:
        self._last = shown
        screen = base64.b64decode(shown["screenshot"])
        self._size = size_of(screen)
        return Observation(text=f"Task: {self._goal}" + (f"\n{EXPLANATION}" if self._explain else ""), screens=(screen,))

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._driver.stdin is not None
        try:
            self._driver.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError as error:
            raise RuntimeError(f"osworld: its driver is gone; it ended with status {self._driver.wait()}") from error
        answer = self._told()
        if "error" in answer:
            raise RuntimeError(f"osworld: {answer['error']}")
        return answer

    def _told(self) -> dict[str, Any]:
        line = self._replies.readline()
        if not line:
            raise RuntimeError(f"osworld: its driver is gone; it ended with status {self._driver.wait()}")
        return json.loads(line)


_EXAMPLE = {"id": "none", "instruction": "Do nothing.", "config": [], "evaluator": {"func": "infeasible"}}


def _scored_too_late(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    after, turns = arguments.get("score_after", 15), stage.environment.max_turns
    if after > turns:
        yield (
            f"environment 'osworld' is scored after score_after ({after}) actions, and environment.max_turns ({turns}) ends an episode "
            "before that, without a score; raise max_turns"
        )


@environment("osworld", deterministic=False, missing=missing, refuses=_scored_too_late, tasks=({"id": "none", "example": _EXAMPLE},))
def osworld(
    *,
    provider: str = "docker",
    path_to_vm: str | None = None,
    region: str | None = None,
    os_type: str = "Ubuntu",
    snapshot: str = "init_state",
    screen: tuple[int, int] = (1920, 1080),
    cache: str = "cache",
    score_after: int = 15,
    settle: float = 60.0,
    pause: float = 2.0,
    explain: bool = True,
) -> OSWorld:
    """OSWorld's tasks on virtual machines, one for each episode. Untested on a real one.

    Args:
        provider: what keeps the machines, as OSWorld names it: docker, vmware, aws, ...
        path_to_vm: of the machine's image; None: OSWorld finds or downloads it.
        region: of a cloud.
        os_type: system of the machine, Ubuntu or Windows.
        snapshot: what the machine is set back to.
        screen: width and height of its screen in pixels.
        cache: folder for the files of tasks.
        score_after: actions after which an episode is scored and over; `max_turns` must not be less.
        settle: seconds between the setup of a task and its first screen.
        pause: seconds between an action and its screen, and before an episode is scored. `deadline` needs room for all this, and the
            start of a machine.
        explain: whether the text says how actions are written.

    Raises:
        ValueError: no action, or a time below 0.
        RuntimeError: OSWorld's Python is not named, or its driver does not start.
    """
    if score_after < 1 or settle < 0 or pause < 0:
        raise ValueError(f"environment 'osworld': score_after {score_after}, settle {settle:g}, pause {pause:g}: at least 1, 0 and 0")
    lacks = missing()
    if lacks is not None:
        raise RuntimeError(f"environment 'osworld': {lacks}")
    given = {
        "provider_name": provider,
        "path_to_vm": path_to_vm,
        "region": region,
        "os_type": os_type,
        "snapshot_name": snapshot,
        "screen_size": list(screen),
        "cache_dir": cache,
        "headless": True,
        "require_a11y_tree": False,
    }
    return OSWorld(os.environ[VARIABLE], given, score_after=score_after, settle=settle, pause=pause, explain=explain)
