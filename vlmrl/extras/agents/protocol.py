"""What an environment is: reset by a task and a seed, then steps of (action as text) -> (observation, reward, done). Without threads.

An environment lives in a worker process that may be killed at any time (`agents.pool`). It is synchronous and knows nothing of groups,
rollouts or models. All that happens in an episode is a function of its task, its seed and the actions: then an episode that a crash
cut off is made again, screen by screen, and `vlmrl tools env check` finds where that is not so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from vlmrl.protocols import environment as environment  # worlds of earlier versions import it from here

Outcome = Literal["", "success", "failure", "cut", "invalid", "turns", "context"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Why an episode ended, or what became of a step: `invalid` is an action that could not be read, which is the policy's doing. `cut` is a
limit of the world itself, such as gymnasium's `truncated`; `turns` and `context` are limits, set by whoever runs the episode. The empty one
says nothing yet."""

Info = Mapping[str, float | str]
"""What a world says of a step beside the reward: numbers and short texts by name."""
LONGEST, MOST = 200, 64
"""Characters of a text or a name of an `Info`, and its entries."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the environment shows before an action."""

    text: str
    screens: tuple[bytes, ...] = ()
    """Files of pictures, in the order in which they are shown: PNG, or whatever rows may have."""
    state: str | None = None
    """Equal texts are equal states, which step credit compares across attempts. None: the hash of text and screens, which is less than
    the state where something is hidden and more than it where a clock is shown."""


@dataclass(frozen=True, kw_only=True)
class Transition:
    """What came of one action. A failure of the environment is no transition: raise, and the pool makes it a fault."""

    observation: Observation | None
    """None where the episode is over: there is no next screen."""
    reward: float = 0.0
    """Of this step; the sum over the steps is the return."""
    outcome: Outcome = ""
    info: Info = field(default_factory=dict[str, float | str])
    """Of this step; shown to nobody who acts. Stands in records, and the last numbers of an episode are measured."""

    @property
    def done(self) -> bool:
        return self.observation is None


class Environment(Protocol):
    """One world, which runs one episode at a time."""

    @property
    def identity(self) -> Mapping[str, str]:
        """What decides its pixels beside task and seed: version, hash of pages, browser, fonts. Part of a run's identity."""
        ...

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """Begin an episode. `task["attempt"]` counts the retries of this episode after faults; only an injector of faults may look."""
        ...

    def step(self, action: str) -> Transition:
        """Act. An action that cannot be read is a transition with the outcome `invalid`, never an exception."""
        ...

    def close(self) -> None:
        """Give back what it holds. A killed worker does not get here."""
        ...


@runtime_checkable
class Explorable(Protocol):
    """An environment that names actions to try: what checks and random players need."""

    def propose(self, n: int) -> str | None:
        """An action that is worth trying now; all of them for the numbers 0, 1, 2, ... None where it knows none."""
        ...


@runtime_checkable
class Solvable(Protocol):
    """An environment whose best return is known."""

    def solve(self) -> str | None:
        """An action of a best continuation of the running episode; None where it is not known for this one."""
        ...

    def optimum(self) -> Optimum | None:
        """Of the running episode, from its beginning; None where it is not known for this one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best that can be reached in an episode."""

    reward: float
    """Greatest return."""
    turns: int
    """Fewest actions that reach it."""


def info_problem(info: object) -> str | None:
    """What is wrong with an `Info`; None where nothing is."""
    if not isinstance(info, Mapping):
        return f"info is {type(info).__name__}; it maps names to numbers and short texts"
    if len(info) > MOST:
        return f"info has {len(info)} entries, at most {MOST} are taken"
    for name, value in info.items():
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST:
            return f"info: {name!r:.80} is no name of at most {LONGEST} characters"
        if not (isinstance(value, str) and len(value) <= LONGEST) and not (isinstance(value, int | float) and math.isfinite(value)):
            return f"info: '{name}' is {value!r:.80}; finite numbers and texts of at most {LONGEST} characters are taken"
    return None


def plain_info(told: Mapping[str, Any]) -> dict[str, float | str]:
    """Of what a foreign world tells of a step, what an `Info` may have: finite numbers (true is 1) and short texts, those of mappings
    inside by `outer/inner`. The rest (arrays, lists, long texts) is left out, and so is what comes after the `MOST` first."""
    out: dict[str, float | str] = {}
    for key, value in told.items():
        name = str(key)
        if isinstance(value, Mapping):
            out |= {f"{name}/{inner}": one for inner, one in plain_info(value).items()}
        elif isinstance(value, str):
            out[name] = value
        elif hasattr(value, "__float__") and getattr(value, "shape", ()) == ():  # numbers of numpy too, and no arrays
            out[name] = float(value)
    kept = [(name, value) for name, value in out.items() if info_problem({name: value}) is None]
    return dict(kept[:MOST])


def outcome_of_end(told: Info, total: float, above: float, *, cut: bool) -> Outcome:
    """What the end of a foreign world's episode is: a success where it says so (`success`, `is_success` or `won`), and where it says
    nothing, where the return is above a number; else a cut, or a failure."""
    word = next((told[name] for name in ("success", "is_success", "won") if isinstance(told.get(name), float)), None)
    won = total > above if word is None else bool(word)
    return "success" if won else "cut" if cut else "failure"
