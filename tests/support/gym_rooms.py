"""A small world of gymnasium's own kind, drawn without pygame: a corridor with a goal at its right end."""

from __future__ import annotations

from enum import IntEnum
from string import ascii_lowercase
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 4


class Moves(IntEnum):
    left = 0
    right = 1


class Corridor(gymnasium.Env[Any, Any]):
    """The seed says where it begins. `says`: whether its `info` says what is a success."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (as gymnasium has it)

    def __init__(self, render_mode: str | None = None, says: bool = False, named: bool = True, start: int = 0):
        self.render_mode, self.says = render_mode, says
        self.action_space = spaces.Discrete(2, start=start)
        self.observation_space = spaces.Dict({"at": spaces.Discrete(LENGTH), "mission": spaces.Text(40, charset=ascii_lowercase + " ")})
        if named:
            self.actions = Moves
        self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = int((options or {}).get("at", self.np_random.integers(LENGTH - 1)))
        return self.seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = min(LENGTH - 1, max(0, self.at + (1 if action - self.action_space.start else -1)))
        ended = self.at == LENGTH - 1
        told = {"left_to_go": LENGTH - 1 - self.at} | ({"success": False} if self.says else {})
        return self.seen(), float(ended), ended, False, told

    def seen(self) -> dict[str, Any]:
        return {"at": np.int64(self.at), "mission": "go to the right end"}

    def render(self) -> np.ndarray:
        out = np.zeros((56, 56, 3), np.uint8)
        out[:, self.at * 14 : self.at * 14 + 14] = (200, 30, 30)
        return out


gymnasium.register("rooms/Corridor-v0", entry_point=Corridor, max_episode_steps=5)
