"""The driver of one OSWorld desktop: a program for OSWorld's own Python, which holds a `DesktopEnv` and answers requests.

    python osworld_driver.py REPLIES SETUP

OSWorld's pins do not go together with ours, so it has an interpreter of its own, without a package of ours. Requests are lines of JSON on
standard input, answers lines of JSON on the descriptor REPLIES; SETUP is a JSON object with the arguments of `DesktopEnv`. What OSWorld
prints goes where this program's output goes. When standard input ends, so does the desktop: the worker that held it may have been killed.

`DesktopEnv` goes on where a setup fails for good, a command does not reach the desktop, or no screenshot comes. All three are errors here.
"""

from __future__ import annotations

import base64
import importlib
import importlib.metadata
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any


def main(arguments: list[str]) -> None:
    """Serve until standard input ends."""
    replies, given = int(arguments[0]), json.loads(arguments[1])
    os.set_inheritable(replies, False)
    # the limits of the worker are for its requests, and this program outlives them
    for kind in (resource.RLIMIT_CPU, resource.RLIMIT_DATA):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (hard, hard))
    _write(replies, {"version": _version()})
    desktop = _Desktop(given)
    try:
        for line in sys.stdin:
            try:
                answer = desktop.answer(json.loads(line))
            except Exception as error:  # noqa: BLE001 (the border of OSWorld: told to the worker, for which it is a fault)
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            try:
                _write(replies, answer)
            except BrokenPipeError:  # nobody waits for it any more
                return
    finally:
        desktop.close()


class _Desktop:
    def __init__(self, given: dict[str, Any]):
        self._given = given
        self._env: Any = None
        self._setups: list[Any] = []
        self._commands: list[Any] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "reset":
            if self._env is None:
                self._env = self._open()
            self._setups.clear()
            self._env.reset(task_config=request["example"])
            if self._setups and not self._setups[-1]:
                raise RuntimeError("the desktop cannot be set up for the task")
            time.sleep(request["settle"])
            return self._shown(self._env._get_obs())
        if request["do"] == "step":
            self._commands.clear()
            seen = self._env.step(request["command"], request["pause"])[0]
            if not all(isinstance(one, dict) and one.get("returncode", 0) == 0 for one in self._commands):
                raise RuntimeError(f"the desktop did not do {request['command']!r}: {self._commands[-1]}")
            return self._shown(seen)
        if request["do"] == "score":
            time.sleep(request["settle"])
            return {"score": float(self._env.evaluate())}
        raise ValueError(f"unknown request {request['do']!r}")

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _open(self) -> Any:
        """The desktop; what its controllers answer is kept from now on."""
        _keep(importlib.import_module("desktop_env.controllers.setup").SetupController, "setup", self._setups.append)
        _keep(importlib.import_module("desktop_env.controllers.python").PythonController, "execute_python_command", self._commands.append)
        return importlib.import_module("desktop_env.desktop_env").DesktopEnv(action_space="pyautogui", **self._given)

    @staticmethod
    def _shown(seen: dict[str, Any]) -> dict[str, Any]:
        if not seen["screenshot"]:
            raise RuntimeError("the desktop gives no screenshot")
        return {"screenshot": base64.b64encode(seen["screenshot"]).decode("ascii"), "instruction": seen["instruction"]}


def _keep(owner: Any, name: str, told: Callable[[Any], None]) -> None:
    plain = getattr(owner, name)

    def kept(*args: Any, **more: Any) -> Any:
        out = plain(*args, **more)
        told(out)
        return out

    setattr(owner, name, kept)


def _version() -> str:
    try:
        return importlib.metadata.version("desktop-env")
    except importlib.metadata.PackageNotFoundError:
        return "a checkout"


def _write(replies: int, value: dict[str, Any]) -> None:
    rest = memoryview(json.dumps(value).encode() + b"\n")
    while rest:
        rest = rest[os.write(replies, rest) :]


if __name__ == "__main__":
    main(sys.argv[1:])
