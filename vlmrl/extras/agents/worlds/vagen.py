"""Environment `vagen`: a bridge to worlds that are written as those of VAGEN (mll-lab-nu/VAGEN, `GymImageEnv`): sokoban, frozenlake, yours.

What it needs is a class by its path, of which nothing is imported but that: `Class(config)`, and the coroutines `reset(seed)`, which gives
(seen, info), `step(answer)`, which gives (seen, reward, done, info), `system_prompt()` and `close()`. What is seen is `{"obs_str": text,
"multi_modal_input": {"<image>": [pictures]}}`, the latter where there are any. Read at commit 2936322.

Such a world reads whole answers, tags and all. An episode is over where it is done or `info` says `success` (or `is_success`), as in the
loop of VAGEN; `action_is_valid` of its turn metrics says which answers could not be read.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlmrl.errors import ConfigError
from vlmrl.extras.agents.protocol import Observation, Outcome, Transition, plain_info
from vlmrl.extras.toy.picture import png
from vlmrl.protocols import environment

VERSION = "1"
PICTURE = "<image>"
_SEEDS = 1 << 31
_WON = ("success", "is_success")


class Vagen:
    """See the top of the file."""

    def __init__(self, path: str, config: dict[str, Any], *, repeat: bool, tries: Sequence[str]):
        """The arguments are those of the environment."""
        made = _class_of(path)
        self._path, self._repeat, self._tries = path, repeat, list(tries)
        self._source = hashlib.sha256(Path(inspect.getfile(made)).read_bytes()).hexdigest()[:16]
        self._loop = asyncio.new_event_loop()
        self._world: Any = made(config)
        self._rules = Observation(text="")
        self._seen = Observation(text="")
        self._over = True

    @property
    def identity(self) -> Mapping[str, str]:
        return {"environment": "vagen", "version": VERSION, "world": self._path, "source": self._source}

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """Begin anew; `task["seed"]` takes the place of the drawn seed. What is seen begins with the world's system prompt."""
        seen, _ = self._wait(self._world.reset(int(task.get("seed", seed)) % _SEEDS))
        self._rules = shown(self._wait(self._world.system_prompt()) or {})  # after the reset, as in VAGEN's loop
        self._over = False
        self._seen = _joined(self._rules, shown(seen))
        return self._seen

    def step(self, action: str) -> Transition:
        """Give the world a whole answer."""
        if self._over:
            raise RuntimeError("vagen: a step after the end of the episode")
        seen, reward, done, info = self._wait(self._world.step(action))
        won = any(bool(info.get(name)) for name in _WON)
        told = plain_info(info)
        if done or won:
            self._over = True
            cut = bool(info.get("truncated")) and not won
            outcome: Outcome = "success" if won else "cut" if cut else "failure"
            return Transition(observation=None, reward=float(reward), outcome=outcome, info=told)
        self._seen = _joined(self._rules, shown(seen)) if self._repeat else shown(seen)
        read = told.get("metrics/turn_metrics/action_is_valid", 1.0)
        return Transition(observation=self._seen, reward=float(reward), outcome="" if read else "invalid", info=told)

    def close(self) -> None:
        self._wait(self._world.close())
        self._wait(self._loop.shutdown_default_executor())
        self._loop.close()

    def propose(self, n: int) -> str | None:
        """Each of the answers to try, if there are any."""
        return self._tries[n % len(self._tries)] if self._tries else None

    def _wait(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(what)


def shown(seen: Mapping[str, Any]) -> Observation:
    """What such a world shows, as an observation: pictures first, in their order, then the text without their places.

    Raises:
        TypeError: there are not as many places as pictures.
    """
    text = str(seen.get("obs_str", ""))
    pictures = list((seen.get("multi_modal_input") or {}).get(PICTURE) or [])
    if text.count(PICTURE) != len(pictures):
        raise TypeError(f"vagen: {text.count(PICTURE)} places for pictures and {len(pictures)} pictures")
    lines = [line.replace(PICTURE, "").rstrip() for line in text.strip().splitlines() if line.strip() != PICTURE]
    return Observation(text="\n".join(lines), screens=tuple(png(np.asarray(one.convert("RGB"))) for one in pictures))


def _joined(*parts: Observation) -> Observation:
    texts = [part.text for part in parts if part.text]
    return Observation(text="\n\n".join(texts), screens=tuple(screen for part in parts for screen in part.screens))


def _class_of(path: str) -> Any:
    module, _, name = path.replace(":", ".").rpartition(".")
    return getattr(importlib.import_module(module), name)


def _tasks(path: str = "", **others: object) -> tuple[Mapping[str, Any], ...]:
    top = path.replace(":", ".").partition(".")[0]
    if "." not in path.replace(":", ".") or importlib.util.find_spec(top) is None:
        how = f"put the folder that '{top}' lies in on PYTHONPATH"
        raise ConfigError(f"environment 'vagen': path '{path}' is no package.module:Class that Python finds; {how}")
    return ({"id": path.rpartition(".")[2].rpartition(":")[2].lower()},)


@environment("vagen", tasks=_tasks, reads_answers=True, begins_alike=True, asks="exact_text")
def vagen(*, path: str, config: dict[str, Any] | None = None, repeat: bool = False, tries: list[str] | None = None) -> Vagen:
    """A world that is written as those of VAGEN (`GymImageEnv`): sokoban, frozenlake, navigation, one of your own.

    Args:
        path: of its class, `package.module:Class`.
        config: what the class is made with.
        repeat: whether every observation says the system prompt again, and not only the first: for prompts that begin anew at a turn.
        tries: answers that the check and the agent `random` try, such as `<think></think><answer>up</answer>`.

    Raises:
        ConfigError: there is no such module.
    """
    return Vagen(path, config or {}, repeat=repeat, tries=tries or ())
