"""The world of the benchmarks of turns: every action shows another screen. A plug-in, so that a worker process finds it by name.

A screen is a function of the seed, the turn and the action: attempts that act differently see different pictures, all of one size.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from vlmrl.extras.agents.protocol import Observation, Transition
from vlmrl.protocols import environment
from vlmrl.rng import key

NAME = "benchmark_screens"
CELL = 28
TEXT = "Next?"


def picture(seed: int, turn: int, action: str, side: int) -> Any:
    """Blocks of colour, `side` cells of 28 pixels along each side."""
    import numpy as np
    from PIL import Image

    draw = np.random.Generator(np.random.Philox(key(seed, "screen", turn, action)))
    return Image.fromarray(draw.integers(0, 255, (side, side, 3), dtype=np.uint8).repeat(CELL, 0).repeat(CELL, 1))


class Screens:
    """`turns` actions, a screen of `side` x `side` visual tokens before each."""

    identity: Mapping[str, str] = {"environment": NAME, "version": "1"}

    def __init__(self, turns: int, side: int):
        self.turns, self.side = turns, side
        self.seed = self.turn = 0

    def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """The first screen of an episode."""
        del task
        self.seed, self.turn = seed, 0
        return self._look("")

    def step(self, action: str) -> Transition:
        """The next screen, until the turns are over."""
        self.turn += 1
        if self.turn == self.turns:
            return Transition(observation=None, reward=1.0, outcome="success")
        return Transition(observation=self._look(action))

    def close(self) -> None:
        """Nothing to end."""

    def _look(self, action: str) -> Observation:
        png = io.BytesIO()
        picture(self.seed, self.turn, action, self.side).save(png, "PNG")
        return Observation(text=TEXT, screens=(png.getvalue(),), state=None)


@environment(NAME)
def screens(*, turns: int, side: int) -> Screens:
    """Every action shows another screen."""
    return Screens(turns, side)
