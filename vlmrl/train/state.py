"""RunState: everything of a run that must survive a crash and cannot be recomputed. What is not here is a function of it.

Weights and optimizer moments are tensors of the checkpoint; the rest is JSON. There is no random state: draws are functions of
coordinates (`rng`). Loading is strict: a missing or unknown key is an error, not a default. The saved keys are the dataclass's fields,
and a new stage starts from a fresh `StageState`, so a field that is added is saved and reset without being named again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from vlmrl.errors import CheckpointError
from vlmrl.sampling.ledger import Ledger


@dataclass(kw_only=True)
class StageState:
    """What belongs to the current stage: the next one starts from a fresh one."""

    step: int = 0
    """Finished optimizer steps of the current stage."""
    skipped_in_row: int = 0
    """Updates refused in a row because loss or gradient was not finite."""
    empty_in_row: int = 0
    """Steps in a row without any trainable row."""
    without_signal: int = 0
    """Steps in which no group had answers that differ in worth."""
    verdicts: dict[str, int] = field(default_factory=dict)
    """Reward -> rollouts that it has scored; one that has scored none has 0."""
    max_tokens_per_microbatch: int | None = None
    """Token budget after out-of-memory halvings; None: the recipe's."""
    bad_media: dict[str, str] = field(default_factory=dict)
    """Sample id -> reason, for samples whose media failed during training."""
    memories: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Part -> what it remembers (`train.memory`): sampler, reward runner, strategy, constraints, methods; tensors apart."""


@dataclass(kw_only=True)
class RunState(StageState):
    """See the module docstring."""

    stage: int = 0
    """Index of the current stage in the recipe."""
    global_step: int = 0
    """Finished optimizer steps of the run; names checkpoints and journals."""
    policy_version: int = 0
    """Applied weight updates."""
    ledger: Ledger = field(default_factory=Ledger)

    def start_stage(self, index: int) -> None:
        """Move to the next stage: counters of the stage start again, the run's go on."""
        self.stage = index
        fresh = StageState()
        for one in fields(StageState):
            setattr(self, one.name, getattr(fresh, one.name))

    def state_dict(self) -> dict[str, Any]:
        """Every field by name; a `Ledger` as its own state."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value.state_dict() if isinstance(value, Ledger) else value for name, value in values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError naming missing and unknown keys."""
        expected = {one.name for one in fields(self)}
        if set(state) != expected:
            raise CheckpointError(
                f"run state: missing keys {sorted(expected - set(state))}, unknown keys {sorted(set(state) - expected)}; "
                "the checkpoint was written by another version"
            )
        for name, value in state.items():
            part = getattr(self, name)
            if isinstance(part, Ledger):
                part.load_state_dict(value)
            else:
                setattr(self, name, value)
