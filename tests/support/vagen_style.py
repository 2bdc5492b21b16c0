"""A world written as those of VAGEN are: coroutines, answers with tags, places for pictures in the text."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import numpy as np
from PIL import Image


class Corridor:
    """Two answers lead along a corridor; the seed says where it begins."""

    def __init__(self, env_config: dict[str, Any]):
        self.length = int(env_config.get("length", 4))
        self.places = int(env_config.get("places", 1))
        self.steps = int(env_config.get("steps", 100))
        self.at, self.taken = 0, 0

    async def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        self.at, self.taken = seed % (self.length - 1), 0
        return await asyncio.to_thread(self.seen, "You see:"), {}

    async def system_prompt(self) -> dict[str, Any]:
        return {"obs_str": "Go to the right end."}

    async def step(self, action_str: str) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        found = re.fullmatch(r"<think>.*?</think>\s*<answer>(left|right)</answer>", action_str, re.DOTALL)
        if found is not None:
            self.at = min(self.length - 1, max(0, self.at + (1 if found.group(1) == "right" else -1)))
        self.taken += 1
        won = self.at == self.length - 1
        told = {
            "llm_raw_response": action_str,
            "actions": [action_str],
            "metrics": {"turn_metrics": {"action_is_valid": found is not None}, "traj_metrics": {"success": won}},
            "success": won,
            "truncated": self.taken >= self.steps,
        }
        return self.seen("Now:"), float(won), self.taken >= self.steps, told

    async def close(self) -> None:
        self.length = 0

    def seen(self, text: str) -> dict[str, Any]:
        drawn = np.zeros((56, 56, 3), np.uint8)
        drawn[:, self.at * 14 : self.at * 14 + 14] = (30, 200, 30)
        picture = Image.fromarray(drawn).convert("RGBA")
        return {"obs_str": f"{text}\n<image>\nAnswer.\n", "multi_modal_input": {"<image>": [picture] * self.places}}


class NoPictures(Corridor):
    """Shows text alone."""

    def seen(self, text: str) -> dict[str, Any]:
        return {"obs_str": f"{text} {self.at}"}
