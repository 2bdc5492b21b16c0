"""An environment from outside the package: a light is red or green, and three times the action must fit it."""

from __future__ import annotations

import io

from PIL import Image

from vlmrl.extras.agents.protocol import Observation, Optimum, Transition
from vlmrl.protocols import environment
from vlmrl.rng import key


class Lights:
    identity = {"environment": "lights", "version": "1"}  # noqa: RUF012 (never changed)

    def reset(self, task, seed):
        self.seed, self.turn, self.right = seed, 0, 0
        return self.look()

    def step(self, action):
        if action not in ("stop", "go"):
            return Transition(observation=self.look(), outcome="invalid")
        self.right += action == self.solve()
        self.turn += 1
        if self.turn < 3:
            return Transition(observation=self.look())
        return Transition(observation=None, reward=self.right / 3, outcome="success" if self.right == 3 else "failure")

    def close(self):
        pass

    def look(self):
        picture = io.BytesIO()
        Image.new("RGB", (56, 56), "red" if self.solve() == "stop" else "green").save(picture, "PNG")
        return Observation(text="Stop or go?", screens=(picture.getvalue(),), state=str(self.turn))

    def propose(self, n):  # optional: for `vlmrl tools env check` and random players
        return ("stop", "go")[n % 2]

    def solve(self):  # optional, with `optimum`: a best action now, and what the best episode is worth
        return ("stop", "go")[key(self.seed, "lights", self.turn) % 2]

    def optimum(self):
        return Optimum(reward=1.0, turns=3)


@environment("lights")
def lights() -> Lights:
    """Say three times what a light means."""
    return Lights()
