"""What came of an operation of an environment, as the pool gives it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmrl.extras.agents.protocol import Info, Observation, Optimum, Transition


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came of an operation: what was seen, or a fault. A fault has no reward, not even 0."""

    observation: Observation | None = None
    reward: float | None = None
    """Of a step; None of a reset and of a fault."""
    outcome: str = ""
    info: Info = field(default_factory=dict[str, float | str])
    action: str | None = None
    """Of `propose` and `solve`; None where the environment has no such thing."""
    optimum: Optimum | None = None
    """Of a reset, where the environment knows it."""
    fault: str | None = None
    detail: str = ""

    @property
    def done(self) -> bool:
        """Whether the episode is over; a fault ends it too."""
        return self.observation is None

    @property
    def told(self) -> str:
        """The line of `detail` that says what failed: the first of the error's message, or the last one where no error was raised."""
        lines = self.detail.strip().splitlines()
        raised = re.compile(rf"([\w.]+\.)?{re.escape((self.fault or '').removeprefix('raised:'))}(:|$)")
        return next((line for line in reversed(lines) if raised.match(line)), "".join(lines[-1:]))

    def transition(self) -> Transition:
        """
        Raises:
            ValueError: this is a fault, or no step.
        """
        if self.reward is None:
            raise ValueError(f"no transition: {self.fault or 'not a step'}")
        return Transition(observation=self.observation, reward=self.reward, outcome=self.outcome, info=self.info)  # pyright: ignore[reportArgumentType]


def read_reply(answer: Mapping[str, Any]) -> Reply:
    """What a worker answers to a reset, a step or a question."""
    seen, best, reward = answer.get("seen"), answer.get("optimum"), answer.get("reward")
    shown = None
    if seen is not None:
        screens = tuple(base64.b64decode(data) for data in seen["screens"])
        shown = Observation(text=seen["text"], screens=screens, state=seen["state"])
    return Reply(
        observation=shown,
        reward=None if reward is None else float.fromhex(reward),
        outcome=answer.get("outcome", ""),
        info=answer.get("info", {}),
        action=answer.get("action"),
        optimum=None if best is None else Optimum(reward=best[0], turns=best[1]),
    )
