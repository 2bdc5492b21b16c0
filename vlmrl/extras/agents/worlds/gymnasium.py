"""Environment `gymnasium`: a bridge to any world that gymnasium registers and whose actions are a few names: FrozenLake, MiniGrid, BabyAI.

What it needs of gymnasium 1 is `make(env_id, render_mode="rgb_array")`, `reset(seed, options)`, `step(number)` and `render()`. The action
space is `Discrete`; the policy writes the name of an action. The mission of a dict observation (MiniGrid, BabyAI) stands in the text.

The reward is the world's. An episode that ends is a success where the world says so in its `info` (`success`, `is_success` or `won`), and
where it says nothing, where the return is above `success_above`; else it failed, or was cut off by the world's own limit (`truncated`).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vlmrl.errors import ConfigError
from vlmrl.extras.agents.protocol import Observation, Transition, outcome_of_end, plain_info
from vlmrl.extras.toy.picture import png
from vlmrl.protocols import environment

VERSION = "1"
_SEEDS = 1 << 31
_DRAWING = ("gymnasium", "pygame")
"""Packages whose versions decide what is seen, beside the one that registers the world."""
Observe = Literal["pixels", "text", "both"]


def missing() -> str | None:
    """What is not installed, and the command that installs it."""
    return None if importlib.util.find_spec("gymnasium") else "the package gymnasium; install: pip install 'vlmrl[gymnasium]'"


def names_of(world: Any, asked: Sequence[str] | None) -> list[str]:
    """Names of a world's actions, in the order of their numbers: those that are asked for, its own, or the numbers.

    Raises:
        ConfigError: actions that are no short list, or not so many names.
    """
    space = world.action_space
    if type(space).__name__ != "Discrete":
        raise ConfigError(f"environment 'gymnasium': its actions are {space}; only Discrete ones can be named")
    inside = world.unwrapped
    known = getattr(inside, "actions", None)
    if asked is not None:
        names = list(asked)
    elif isinstance(known, type) and hasattr(known, "__members__"):  # an enumeration, as MiniGrid has it
        names = [name for name, _ in sorted(known.__members__.items(), key=lambda one: int(one[1]))]
    elif hasattr(inside, "get_action_meanings"):
        names = [str(name).lower() for name in inside.get_action_meanings()]
    else:
        names = [str(int(space.start) + n) for n in range(int(space.n))]
    if len(names) != int(space.n) or len({name.strip().lower() for name in names}) != len(names):
        raise ConfigError(f"environment 'gymnasium': actions {names}; the world has {int(space.n)}, each with a name of its own")
    return names


class Gymnasium:
    """See the top of the file."""

    def __init__(
        self,
        env_id: str,
        *,
        actions: Sequence[str] | None,
        module: str,
        text: str,
        observe: Observe,
        success_above: float,
        kwargs: dict[str, Any],
    ):
        """The arguments are those of the environment."""
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame opens no window
        made = importlib.import_module("gymnasium")
        if module:
            importlib.import_module(module)
        drawn = {} if observe == "text" else {"render_mode": "rgb_array"}
        self._env: Any = made.make(env_id, **drawn, **kwargs)
        self._names = names_of(self._env, actions)
        self._text, self._observe, self._above, self._id, self._module = text, observe, success_above, env_id, module
        self._seen: Any = None
        self._total = 0.0
        self._over = True

    @property
    def identity(self) -> Mapping[str, str]:
        named = [*_DRAWING, self._module.partition(".")[0]]
        there = {name: str(version) for name in named if (version := getattr(sys.modules.get(name), "__version__", None))}
        return {"environment": "gymnasium", "version": VERSION, "world": self._id, **there}

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """Begin anew. `task["seed"]` takes the place of the drawn seed, `task["options"]` is what the world's `reset` gets as `options`."""
        self._seen, _ = self._env.reset(seed=int(task.get("seed", seed)) % _SEEDS, options=task.get("options"))
        self._total, self._over = 0.0, False
        return self._look()

    def step(self, action: str) -> Transition:
        """Act by name, whatever the case of its letters. What is no name changes nothing."""
        if self._over:
            raise RuntimeError("gymnasium: a step after the end of the episode")
        wanted = action.strip().lower()
        numbers = [n for n, name in enumerate(self._names) if name.strip().lower() == wanted]
        if not numbers:
            return Transition(observation=self._look(), outcome="invalid")
        space = self._env.action_space
        self._seen, reward, ended, cut, info = self._env.step(int(space.start) + numbers[0])
        self._total += float(reward)
        told = plain_info(info)
        if not (ended or cut):
            return Transition(observation=self._look(), reward=float(reward), info=told)
        self._over = True
        outcome = outcome_of_end(told, self._total, self._above, cut=bool(cut) and not ended)
        return Transition(observation=None, reward=float(reward), outcome=outcome, info=told)

    def close(self) -> None:
        self._env.close()

    def propose(self, n: int) -> str:
        """Each of the actions."""
        return self._names[n % len(self._names)]

    def _look(self) -> Observation:
        mission = self._seen.get("mission") if isinstance(self._seen, Mapping) else None
        parts = [self._text, str(mission) if mission else ""]
        if self._observe != "pixels":
            parts.append(written(self._seen, but=("mission",)))
        parts.append(f"Actions: {', '.join(self._names)}")
        screens = () if self._observe == "text" else (png(_pixels(self._env.render())),)
        return Observation(text="\n".join(part for part in parts if part), screens=screens)


def written(seen: Any, *, but: Sequence[str] = ()) -> str:
    """An observation as text: numbers and arrays as JSON, the parts of a dict on lines of their own."""
    if isinstance(seen, Mapping):
        return "\n".join(f"{name}: {written(value)}" for name, value in seen.items() if name not in but)
    if isinstance(seen, str):
        return seen
    if isinstance(seen, list | tuple):
        return ", ".join(written(one) for one in seen)
    return json.dumps(np.asarray(seen).tolist())


def _pixels(drawn: Any) -> np.ndarray:
    """[H, W, 3] uint8.

    Raises:
        TypeError: the world draws something else.
    """
    out = np.asarray(drawn)
    if out.dtype != np.uint8 or out.ndim != 3 or out.shape[2] != 3:
        raise TypeError(
            f"gymnasium: render() gave {type(drawn).__name__} of {out.dtype} {out.shape}, not pixels [height, width, 3] of uint8"
        )
    return np.ascontiguousarray(out)


def _tasks(env_id: str, module: str = "", **others: object) -> tuple[Mapping[str, Any], ...]:
    if module and importlib.util.find_spec(module.partition(".")[0]) is None:
        raise ConfigError(f"environment 'gymnasium': module: Python finds no '{module}'; install it, or put its folder on PYTHONPATH")
    return ({"id": env_id},)


@environment("gymnasium", tasks=_tasks, missing=missing, begins_alike=True, asks="exact_text")
def gymnasium(
    *,
    env_id: str,
    actions: list[str] | None = None,
    module: str = "",
    text: str = "",
    observe: Observe = "pixels",
    success_above: float = 0.0,
    kwargs: dict[str, Any] | None = None,
) -> Gymnasium:
    """A world that gymnasium registers, with a few actions that have names: FrozenLake, MiniGrid, BabyAI, one of your own.

    Args:
        env_id: its name in gymnasium's registry.
        actions: names of its actions, in the order of their numbers; without them the world's own names, or the numbers.
        module: imported first, where that is what registers the world, such as `minigrid`.
        text: what the agent is told at every turn, before the mission of the world and the names of the actions.
        observe: whether the agent sees the world as it draws itself, its observation as text, or both.
        success_above: a return above this is a success, where the world does not say in its `info` what is one.
        kwargs: what `gymnasium.make` gets besides, such as `{is_slippery: false}` or `{max_episode_steps: 20}`.

    Raises:
        ConfigError: actions that are no short list, or not so many names.
    """
    return Gymnasium(env_id, actions=actions, module=module, text=text, observe=observe, success_above=success_above, kwargs=kwargs or {})
