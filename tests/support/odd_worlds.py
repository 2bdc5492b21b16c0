"""Environments that break one promise each, for tests of the check and of the pool."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter

from examples.my_world import Lights
from vlmrl.extras.agents.protocol import Observation, Optimum, Transition
from vlmrl.protocols import environment

BEGUN: Counter[int] = Counter()
"""How often a seed was begun in this process."""


class Odd(Lights):
    def __init__(self, how: str):
        self.how, self.used = how, 0
        if how == "uneven identity":
            self.identity = {**Lights.identity, "process": str(os.getpid())}

    def reset(self, task, seed):
        self.used += 1
        BEGUN[seed] += 1
        self.order = BEGUN[seed]
        if self.how == "uneven":
            super().reset(task, seed)
            return Observation(text=f"Stop or go? {os.getpid()} {BEGUN[seed]}")
        if self.how == "begins once" and BEGUN[seed] > 1:
            raise OSError("no second time")
        if self.how == "dirty" and self.used > 1:
            return Observation(text="again")
        if self.how == "unseeded":
            seed = 1
        if self.how == "slow":
            time.sleep(60)
        if self.how == "no observation":
            return "a text"
        return super().reset(task, seed)

    def step(self, action):
        if self.how == "fails once" and self.order == 1:
            raise OSError("only in the first world of this seed")
        if self.how == "raises" and action not in ("stop", "go"):
            raise KeyError(action)
        if self.how == "infinite":
            return Transition(observation=self.look(), reward=float("inf"))
        if self.how == "telling":
            came = super().step(action)
            return dataclasses.replace(came, outcome="cut" if came.done else "", info={"right": self.right, "said": action})
        if self.how == "muttering":
            return dataclasses.replace(super().step(action), info={"pid": os.getpid()})
        if self.how == "telling lists":
            return Transition(observation=self.look(), info={"a": [1]})
        if self.how == "rambling":
            return Transition(observation=Observation(text=str(os.getpid())))
        return super().step(action)

    def optimum(self):
        return Optimum(reward=1.0, turns=2 if self.how == "boasting" else 3)


@environment("odd")
def odd(*, how: str) -> Odd:
    """An environment that does something wrong."""
    return Odd(how)


@environment("fixed_board", begins_alike=True)
def fixed_board() -> Odd:
    """An environment that begins with the same screen for every seed, and says so."""
    return Odd("unseeded")


@environment("listed")
def listed(*, words: list[str], share: float = 0.1) -> Lights:
    """An environment whose argument is a list."""
    assert words == ["left", "right"]
    assert share == 0.1
    return Lights()


@environment("odd_bridge", deterministic=False)
def odd_bridge(*, how: str) -> Odd:
    """One that does not promise to do otherwise."""
    return Odd(how)
