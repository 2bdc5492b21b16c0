"""Environment `toy_lake`: walk over a small frozen lake to its goal, around the holes, from pixels (`agents.lake`).

An action is `up`, `down`, `left` or `right`; whatever else is invalid, and a move over the edge changes nothing. An episode ends with the
reward 1 at the goal, and with none in a hole. States are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmrl.errors import ConfigError
from vlmrl.extras.agents.lake import MOVES, Lake, draw_lake
from vlmrl.extras.agents.protocol import Observation, Optimum, Transition
from vlmrl.extras.toy.picture import png
from vlmrl.protocols import environment

TASK = "Walk to the green goal: up, down, left or right."
LAYOUTS = ("practised", "held_out")
INVALID = -0.1
"""Reward of an action that is none: without, saying nothing that counts would be better than falling."""


class ToyLake:
    """See the top of the file."""

    identity: Mapping[str, str] = {"environment": "toy_lake", "version": "1"}

    def __init__(self, size: int, holes: int, fewest: int, show_holes: bool):
        self._size, self._holes, self._fewest, self._show_holes = size, holes, fewest, show_holes
        self._lake: Lake | None = None
        self._fewest_here = 0

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """A lake. `task["layouts"]`: `practised` or `held_out`."""
        layouts = task.get("layouts", LAYOUTS[0])
        if layouts not in LAYOUTS:
            raise ValueError(f"toy_lake: the task's layouts are {layouts!r}; known: {', '.join(LAYOUTS)}")
        self._lake = draw_lake((seed,), size=self._size, holes=self._holes, fewest=self._fewest, held_out=layouts == "held_out")
        self._fewest_here = len(self._lake.solution() or [])
        return self._observe(self._lake)

    def step(self, action: str) -> Transition:
        lake = self._running()
        if action.strip() not in MOVES:
            return Transition(observation=self._observe(lake), reward=INVALID, outcome="invalid")
        self._lake = lake = lake.moved(action.strip())
        if lake.solved or lake.fallen:
            return Transition(observation=None, reward=float(lake.solved), outcome="success" if lake.solved else "failure")
        return Transition(observation=self._observe(lake))

    def close(self) -> None:
        pass

    def propose(self, n: int) -> str:
        return (*MOVES, "jump", self.solve(), self.solve())[n % 7]

    def solve(self) -> str:
        return (self._running().solution() or [])[0]

    def optimum(self) -> Optimum:
        return Optimum(reward=1.0, turns=self._fewest_here)

    def _running(self) -> Lake:
        if self._lake is None or self._lake.solved or self._lake.fallen:
            raise RuntimeError("toy_lake: a step outside an episode")
        return self._lake

    def _observe(self, lake: Lake) -> Observation:
        return Observation(text=TASK, screens=(png(lake.paint(holes=self._show_holes)),), state=str(lake.player))


@environment("toy_lake", tasks=({"id": "lake"}, {"id": "lake-held-out", "layouts": "held_out"}), asks="exact_text")
def toy_lake(*, size: int = 4, holes: int = 6, fewest: int = 3, show_holes: bool = True) -> ToyLake:
    """Walk over a small frozen lake to its goal, around the holes; a fifth of all layouts is held out.

    Args:
        size: cells of a side.
        holes: cells that end an episode.
        fewest: least moves of a shortest way.
        show_holes: whether they can be seen. Without, no picture says where they are.

    Raises:
        ConfigError: a lake that is too small.
    """
    if size < 3 or not 0 <= holes <= size * size - 3:
        raise ConfigError(
            f"environment 'toy_lake': size {size} and holes {holes}; at least 3 cells a side, and three of them without a hole"
        )
    return ToyLake(size, holes, fewest, show_holes)
