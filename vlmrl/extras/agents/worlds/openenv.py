"""Environment `openenv`: a bridge to a server of OpenEnv (huggingface/OpenEnv), by its WebSocket. Nothing of OpenEnv is needed here.

Every episode is a session of its own, so a server has to allow as many as run at once (`max_concurrent_envs` of its `create_app`). Messages
are those of OpenEnv 0.10: `{"type": "reset", "data": {"seed": n, ...}}` and `{"type": "step", "data": action}` are answered with `{"type":
"observation", "data": {"observation": {...}, "reward": r, "done": d}}`, or with an error. One that says that an action does not fit the
server's schema is of an action that cannot be read; every other is a fault.

Success is what a gymnasium world's is: what `metadata` or the observation say under `success`, `is_success` or `won`, else a return above
`success_above`. What a server does between two messages is its own: the same actions need not show the same (`deterministic=False`).
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import numpy as np

from vlmrl.errors import ConfigError
from vlmrl.extras.agents.protocol import Observation, Transition, outcome_of_end, plain_info
from vlmrl.extras.toy.picture import png
from vlmrl.protocols import environment

VERSION = "1"
MOST = 64 << 20
"""Bytes of the longest message."""
_SEEDS = 1 << 31
_UNREADABLE = "VALIDATION_ERROR"
_opener = build_opener(ProxyHandler({}))


def missing() -> str | None:
    """Name what is not installed, and the command that installs it."""
    return None if importlib.util.find_spec("websockets") else "the package websockets; install: pip install 'vlmrl[openenv]'"


class Line:
    """A WebSocket for texts. What the server does not say in time, or not as the protocol has it, is an OSError."""

    def __init__(self, url: str, *, seconds: float):
        """Connect; `seconds` is the deadline of connecting and of each message.

        Raises:
            OSError: nobody answers there, or not with a WebSocket.
        """
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self._failed, self._seconds = WebSocketException, seconds
        self._open = ExitStack()
        try:  # no pings: a server that is at work need not answer them, and `seconds` is the deadline
            line = connect(url, open_timeout=seconds, close_timeout=1, ping_interval=None, max_size=MOST, proxy=None)
            self._line = self._open.enter_context(line)
        except WebSocketException as error:
            raise ConnectionError(f"no WebSocket there: {error}") from error

    def ask(self, text: str) -> str:
        """Send a text and return the next one.

        Raises:
            OSError: the connection ended, nothing came in time, or it was no text.
        """
        try:
            self._line.send(text)
            said = self._line.recv(timeout=self._seconds)
        except self._failed as error:
            raise ConnectionResetError(f"the server closed the connection: {error}") from error
        if not isinstance(said, str):
            raise ConnectionError("the server sent bytes where a text was expected")
        return said

    def close(self) -> None:
        """Say goodbye and let go of it, whatever state it is in."""
        self._open.close()


class OpenEnv:
    """See the top of the file."""

    def __init__(
        self,
        url: str,
        *,
        action: str,
        also: Mapping[str, Any],
        screens: Sequence[str],
        text: str,
        shows: Sequence[str] | None,
        success_above: float,
        tries: Sequence[str],
        timeout: float,
    ):
        """The arguments are those of the environment."""
        self._url, self._action, self._also, self._screens, self._text = url.rstrip("/"), action, dict(also), tuple(screens), text
        self._shows, self._above, self._tries, self._timeout = shows, success_above, list(tries), timeout
        self._served = self._metadata()
        self._line: Line | None = None
        self._seen = Observation(text="")
        self._total = 0.0
        self._over = True

    @property
    def identity(self) -> Mapping[str, str]:
        return {"environment": "openenv", "version": VERSION, **self._served}

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """A new session. `task["reset"]` is what the server's `reset` gets besides; a `seed` in it takes the place of the drawn one.

        Raises:
            OSError: the server does not answer, has no session left, or raises.
        """
        self._leave()
        at = urlsplit(self._url)
        self._line = Line(f"{'wss' if at.scheme in ('wss', 'https') else 'ws'}://{at.netloc}{at.path}/ws", seconds=self._timeout)
        came = self._ask("reset", {"seed": seed % _SEEDS, **task.get("reset", {})})
        if came is None or came.get("done"):
            raise ConnectionError("openenv: the server refused the reset, or its episode is over before it begins")
        self._total, self._over = 0.0, False
        self._seen = self._observation(came["observation"])
        return self._seen

    def step(self, action: str) -> Transition:
        """Send an action. What is no action, here or for the server, changes nothing."""
        if self._over:
            raise RuntimeError("openenv: a step after the end of the episode")
        sent = self._sent(action)
        came = None if sent is None else self._ask("step", sent)
        if came is None:
            return Transition(observation=self._seen, outcome="invalid")
        observation, reward = came["observation"], float(came.get("reward") or 0.0)
        told = plain_info({**(observation.get("metadata") or {}), **(came.get("metadata") or {})})
        self._total += reward
        if not came.get("done"):
            self._seen = self._observation(observation)
            return Transition(observation=self._seen, reward=reward, info=told)
        self._over = True
        words = {**plain_info({name: value for name, value in observation.items() if isinstance(value, bool)}), **told}
        cut = bool(words.get("truncated", 0.0))
        return Transition(observation=None, reward=reward, outcome=outcome_of_end(words, self._total, self._above, cut=cut), info=told)

    def close(self) -> None:
        self._leave()

    def propose(self, n: int) -> str | None:
        """Each of the actions to try, if there are any."""
        return self._tries[n % len(self._tries)] if self._tries else None

    def _leave(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def _sent(self, action: str) -> dict[str, Any] | None:
        if self._action:
            return {**self._also, self._action: action}
        try:
            read = json.loads(action)
        except ValueError:
            return None
        return {**self._also, **read} if isinstance(read, dict) else None

    def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The `data` of an observation; None where the server cannot read what was sent.

        Raises:
            OSError: any other error.
        """
        assert self._line is not None
        answer = json.loads(self._line.ask(json.dumps({"type": kind, "data": dict(data)})))
        said = answer.get("data", {})
        if answer.get("type") == "observation" and isinstance(said.get("observation"), dict):
            return said
        if said.get("code") == _UNREADABLE:
            return None
        raise ConnectionError(f"openenv: {said.get('code', 'an answer of an unknown kind')}: {str(said.get('message', answer))[:300]}")

    def _observation(self, seen: Mapping[str, Any]) -> Observation:
        """Pictures of the fields that hold them, and the other fields as text."""
        pictures = [picture for name in self._screens if seen.get(name) is not None for picture in _pictures(name, seen[name])]
        hidden = {"metadata", "done", "reward", *self._screens}
        named = [name for name in seen if name not in hidden] if self._shows is None else self._shows
        told = [_line(name, seen[name], alone=len(named) == 1) for name in named if seen.get(name) not in (None, "")]
        return Observation(text="\n".join([*([self._text] if self._text else []), *told]), screens=tuple(pictures))

    def _metadata(self) -> dict[str, str]:
        """Name and version that the server has of itself.

        Raises:
            OSError: the server does not answer.
        """
        at = urlsplit(self._url)
        url = f"{'https' if at.scheme in ('wss', 'https') else 'http'}://{at.netloc}{at.path}/metadata"
        with _opener.open(url, timeout=self._timeout) as answer:
            said = json.loads(answer.read())
        return {f"served {name}": str(said[name]) for name in ("name", "version") if said.get(name)}


def _line(name: str, value: Any, *, alone: bool) -> str:
    told = value if isinstance(value, str) else json.dumps(value)
    return told if alone else f"{name}: {told}"


def _pictures(name: str, value: Any) -> list[bytes]:
    """Files of the pictures in a field: base64 (a data URL, too), pixels [height][width][3], or a list of either.

    Raises:
        TypeError: it holds something else.
    """
    if isinstance(value, str):
        try:
            return [base64.b64decode(value.rpartition(",")[2], validate=True)]
        except binascii.Error as error:
            raise TypeError(f"openenv: '{name}' is text that is no picture in base64") from error
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [picture for one in value for picture in _pictures(name, one)]
    pixels = np.asarray(value)
    if pixels.ndim == 4:
        return [picture for one in value for picture in _pictures(name, one)]
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype.kind not in "iu" or pixels.min() < 0 or pixels.max() > 255:
        raise TypeError(f"openenv: '{name}' holds no pictures: neither base64 nor pixels [height][width][3] from 0 to 255")
    return [png(np.ascontiguousarray(pixels.astype(np.uint8)))]


def _tasks(url: str = "", **others: object) -> tuple[Mapping[str, Any], ...]:
    if urlsplit(url).scheme not in ("http", "https", "ws", "wss") or not urlsplit(url).netloc:
        raise ConfigError(f"environment 'openenv': url '{url}' is no address of a server, such as http://127.0.0.1:8000")
    return ({"id": "openenv"},)


@environment("openenv", tasks=_tasks, missing=missing, begins_alike=True, deterministic=False, asks="exact_text")
def openenv(
    *,
    url: str,
    action: str = "",
    also: dict[str, Any] | None = None,
    screens: list[str] | None = None,
    text: str = "",
    shows: list[str] | None = None,
    success_above: float = 0.0,
    tries: list[str] | None = None,
    timeout: float = 15.0,
) -> OpenEnv:
    """A world that a server of OpenEnv keeps. Tested with OpenEnv 0.10 and the echo world of its template.

    Args:
        url: of the server, `http://host:port`.
        action: field of an action that gets the text that the policy writes. Without it the policy writes the whole action as JSON.
        also: other fields of every action.
        screens: fields of an observation that hold pictures: base64, or pixels from 0 to 255.
        text: what the agent is told before each observation.
        shows: fields of an observation that stand in the text; without it all but the pictures and the metadata.
        success_above: a return above this is a success, where the server does not say what is one.
        tries: actions that the check and the agent `random` try.
        timeout: seconds that the server may take for one message. Less than the deadline of a step.

    Raises:
        ConfigError: that is no address.
        OSError: the server does not answer.
    """
    return OpenEnv(
        url,
        action=action,
        also=also or {},
        screens=screens or (),
        text=text,
        shows=shows,
        success_above=success_above,
        tries=tries or (),
        timeout=timeout,
    )
