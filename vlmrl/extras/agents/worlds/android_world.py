"""Environment `android_world`: a bridge to the HTTP server of AndroidWorld (arXiv:2405.14573), which drives one Android emulator.

Tested against a recorded exchange of our own making only, never against an emulator: what it sends is what the server's source declares
(`server/android_server.py` of google-research/android_world). Actions are those of `metrics.gui`, coordinates 0 to 1000 of the screen.

A server runs one episode at a time, and all episodes of a generation batch run at once: name as many servers as there are attempts in a
batch. An episode takes a free one and keeps it until it ends; what holds it is a lock on this machine, which a killed worker loses. The
suite is made anew from the episode's seed, so that all attempts of a group have the same parameters.

An episode ends when the policy says that it is done (`complete`, `impossible`), and is scored then; at the limit of turns the reward is 0,
as AndroidWorld counts it. A device has clocks and animations: the same actions need not show the same screens (`deterministic=False`), and
an episode whose worker was lost ends in the fault `drift`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np

from vlmrl.extras.agents.protocol import Observation, Transition
from vlmrl.extras.toy.picture import png
from vlmrl.metrics.gui import POINTING, Action, parse_action
from vlmrl.protocols import environment

VERSION = "1"
FAMILY = "android_world"
_NAMES = {"double_click": "double_tap", "enter": "keyboard_enter"}
"""Ours -> theirs, where they differ."""
_SAME = ("click", "long_press", "input_text", "scroll", "open_app", "navigate_back", "navigate_home", "wait", "answer")
_ENDS = {"complete": "complete", "impossible": "infeasible"}
"""What ends an episode, and the status of the goal that is sent."""
_SEEDS = 1 << 32
_opener = build_opener(ProxyHandler({}))


def sent_as(action: Action, size: tuple[int, int]) -> dict[str, Any] | None:
    """An action as AndroidWorld's JSON, for a screen of (height, width) pixels; None for one that it does not have."""
    if action.kind in _ENDS:
        return {"action_type": "status", "goal_status": _ENDS[action.kind]}
    name = _NAMES.get(action.kind, action.kind)
    if action.kind not in _SAME and action.kind not in _NAMES:
        return None
    out: dict[str, Any] = {"action_type": name}
    if action.point is not None:
        x, y = action.point
        if not (0 <= x <= 1000 and 0 <= y <= 1000):
            return None
        out |= {"x": min(int(x * size[1] / 1000), size[1] - 1), "y": min(int(y * size[0] / 1000), size[0] - 1)}
    elif action.kind in POINTING:
        return None
    if action.kind in ("input_text", "answer", "open_app"):
        if action.text is None:
            return None
        out["app_name" if action.kind == "open_app" else "text"] = action.text
    if action.kind == "scroll":
        if action.direction not in ("up", "down", "left", "right"):
            return None
        out["direction"] = action.direction
    return out


class AndroidWorld:
    """See the top of the file."""

    def __init__(self, servers: tuple[str, ...], timeout: float):
        self._servers, self._timeout = servers, timeout
        self._server: str | None = None
        self._lock = -1
        self._task: dict[str, Any] | None = None
        self._goal = ""
        self._size = (0, 0)

    @property
    def identity(self) -> Mapping[str, str]:
        return {"environment": "android_world", "version": VERSION}

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """An episode of `task["task_type"]`, with the parameters that the seed gives it.

        Raises:
            ValueError: the task names no type.
            RuntimeError: every server is in use.
            OSError: a server does not answer.
        """
        kind = task.get("task_type")
        if not isinstance(kind, str):
            raise ValueError(f"android_world: task {task.get('id')!r} has no task_type, for example ContactsAddContact")
        self._take()
        self._leave()
        self._ask("GET", "/suite/reinitialize", n_task_combinations=1, seed=seed % _SEEDS, task_family=FAMILY)
        self._ask("POST", "/reset", go_home="true")
        asked = {"task_type": kind, "task_idx": 0}
        self._ask("POST", "/task/initialize", **asked)
        self._task = asked
        self._goal = str(self._ask("GET", "/task/goal", **asked)["goal"])
        return self._observe()

    def step(self, action: str) -> Transition:
        if self._task is None:
            raise RuntimeError("android_world: a step outside an episode")
        parsed = parse_action(action)
        sent = None if parsed is None else sent_as(parsed, self._size)
        if parsed is None or sent is None:
            return Transition(observation=self._observe(), outcome="invalid")
        self._ask("POST", "/execute_action", body=sent)
        if parsed.kind not in _ENDS:
            return Transition(observation=self._observe())
        score = float(self._ask("GET", "/task/score", **self._task)["score"])
        self._leave()
        return Transition(observation=None, reward=score, outcome="success" if score >= 1 else "failure")

    def close(self) -> None:
        """Tear the task down and let the server go."""
        try:
            self._leave()
        finally:
            if self._lock >= 0:
                os.close(self._lock)
            self._lock, self._server = -1, None

    def _leave(self) -> None:
        if self._task is not None:
            asked, self._task = self._task, None
            self._ask("POST", "/task/tear_down", **asked)

    def _take(self) -> None:
        """The first server that nobody on this machine holds."""
        if self._server is not None:
            return
        for server in self._servers:
            name = hashlib.sha256(server.encode()).hexdigest()[:16]
            lock = os.open(os.path.join(tempfile.gettempdir(), f"vlmrl-android-{name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._server, self._lock = server, lock
            return
        raise RuntimeError(
            f"android_world: all of {len(self._servers)} servers are in use; name as many as there are episodes at once "
            "(rollout.generation_batch_size x rollout.num_generations for each rank)"
        )

    def _observe(self) -> Observation:
        pixels = np.array(self._ask("GET", "/screenshot", wait_to_stabilize="true")["pixels"], dtype=np.uint8)
        if pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ValueError(f"android_world: the server's screenshot has the shape {list(pixels.shape)}, not height, width, 3")
        self._size = (pixels.shape[0], pixels.shape[1])
        return Observation(text=f"Task: {self._goal}", screens=(png(pixels),))

    def _ask(self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """One exchange; an answer that is no success raises."""
        url = f"{self._server}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(dict(body)).encode()
        request = Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
        with _opener.open(request, timeout=self._timeout) as answer:
            value = json.loads(answer.read())
        if not isinstance(value, dict):
            raise ValueError(f"android_world: {path} answered no JSON object")
        return value  # pyright: ignore[reportUnknownVariableType]


@environment("android_world", deterministic=False, tasks=({"id": "add-contact", "task_type": "ContactsAddContact"},))
def android_world(*, servers: tuple[str, ...] = ("http://127.0.0.1:5000",), timeout: float = 60.0) -> AndroidWorld:
    """AndroidWorld's tasks on emulators behind its HTTP server, one for each episode at a time. Untested on a real one.

    Args:
        servers: addresses.
        timeout: seconds for one exchange; give `deadline` of the environment room for several.

    Raises:
        ValueError: no server, one that is named twice, or an address that is none.
    """
    if not servers or len(set(servers)) < len(servers) or timeout <= 0:
        raise ValueError(
            f"environment 'android_world': servers {list(servers)}, timeout {timeout:g}; at least one server, each once, and a time"
        )
    for server in servers:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
            raise ValueError(f"environment 'android_world': server {server!r} is no address like http://127.0.0.1:5000")
    return AndroidWorld(tuple(server.rstrip("/") for server in servers), timeout)
