"""RunState: everything of a run that must survive a crash and cannot be recomputed. What is not here is a function of it.

Weights and optimizer moments are tensors of the checkpoint; the rest is JSON. There is no random state: draws are functions of
coordinates (`rng`). Loading is strict: a missing or unknown key is an error, not a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vlmrl.errors import CheckpointError
from vlmrl.sampling.ledger import Ledger


@dataclass(kw_only=True)
class RunState:
    """See the module docstring. `sampler` is the state of the current stage's sampler, None before its first step."""

    stage: int = 0
    """Index of the current stage in the recipe."""
    step: int = 0
    """Finished optimizer steps of the current stage."""
    global_step: int = 0
    """Finished optimizer steps of the run; names checkpoints and journals."""
    policy_version: int = 0
    """Applied weight updates."""
    skipped_in_row: int = 0
    """Updates refused in a row because loss or gradient was not finite."""
    empty_in_row: int = 0
    """Steps in a row without any trainable row."""
    max_tokens_per_microbatch: int | None = None
    """Token budget after out-of-memory halvings; None: the recipe's."""
    bad_media: dict[str, str] = field(default_factory=dict)
    """Sample id -> reason, for samples whose media failed during training."""
    sampler: dict[str, Any] | None = None
    rewards: dict[str, Any] | None = None
    """Sliding window of the reward runner."""
    duals: dict[str, dict[str, float]] = field(default_factory=dict)
    """Constraint -> its multipliers."""
    trackers: dict[str, list[float]] = field(default_factory=dict)
    """Running statistics of the stage's advantage method."""
    strategy: dict[str, Any] | None = None
    """Memory of the stage's rollout strategy, where it has one."""
    average: dict[str, Any] | None = None
    """Counters of the averaged reference; its weights are tensors of the checkpoint."""
    ledger: Ledger = field(default_factory=Ledger)

    def start_stage(self, index: int) -> None:
        """Move to the next stage: counters of the stage start again, the run's go on."""
        self.stage, self.step = index, 0
        self.skipped_in_row = self.empty_in_row = 0
        self.max_tokens_per_microbatch, self.sampler, self.rewards = None, None, None
        self.bad_media, self.duals, self.trackers, self.strategy, self.average = {}, {}, {}, None, None

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PLAIN} | {"ledger": self.ledger.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError naming missing and unknown keys."""
        expected = {*_PLAIN, "ledger"}
        if set(state) != expected:
            raise CheckpointError(
                f"run state: missing keys {sorted(expected - set(state))}, unknown keys {sorted(set(state) - expected)}; "
                "the checkpoint was written by another version"
            )
        for name in _PLAIN:
            setattr(self, name, state[name])
        self.ledger.load_state_dict(state["ledger"])


_PLAIN = (
    "stage",
    "step",
    "global_step",
    "policy_version",
    "skipped_in_row",
    "empty_in_row",
    "max_tokens_per_microbatch",
    "bad_media",
    "sampler",
    "rewards",
    "duals",
    "trackers",
    "strategy",
    "average",
)
