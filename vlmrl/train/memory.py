"""What the parts of a stage remember from step to step: one home, saved and restored by construction.

A part with a memory (sampler, reward runner, strategy, constraint, averaged reference, a method of a plug-in) is handed to
`Memories.keep` under a name when the stage is built. From there on every checkpoint holds its state: JSON values in `RunState.memories`,
tensors in `memories.safetensors`. A part that is kept gets its saved state back at once, and what nobody claims is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from vlmrl.errors import CheckpointError
from vlmrl.protocols import Stateful

FILE = "memories.safetensors"
"""File of a checkpoint that holds the tensors."""

P = TypeVar("P", bound=Stateful)


class MethodMemory:
    """The memory of a method that is a pure function: a mapping that its own update replaces once per step."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.value)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = dict(state)


class Memories:
    """See the module docstring. `saved` and `tensors` are what the last checkpoint holds of this stage."""

    def __init__(self, saved: Mapping[str, Mapping[str, Any]] | None = None, tensors: Mapping[str, torch.Tensor] | None = None):
        self._parts: dict[str, Stateful] = {}
        # what the checkpoint holds and no part has claimed yet
        self._waiting: dict[str, dict[str, Any]] = {name: dict(state) for name, state in (saved or {}).items()}
        for name, value in (tensors or {}).items():
            part, _, key = name.partition("/")
            self._waiting.setdefault(part, {})[key] = value

    def keep(self, name: str, part: P) -> P:
        """Make `part` survive the process; if the checkpoint has a state of this name it is loaded now.

        Raises:
            ValueError: the name is taken, or has a slash (it separates part and tensor in the file).
            CheckpointError: what the part raises.
        """
        if name in self._parts or "/" in name:
            raise ValueError(f"memory '{name}': the name is taken, or has a '/'; every part of a stage needs one of its own")
        self._parts[name] = part
        if name in self._waiting:
            part.load_state_dict(self._waiting.pop(name))  # what is left at the end belongs to nobody (`complete`)
        return part

    def complete(self) -> None:
        """Check, once the stage is built, that every saved memory was claimed.

        Raises:
            CheckpointError: the checkpoint holds a memory that no part of this stage has.
        """
        if self._waiting:
            raise CheckpointError(f"the checkpoint holds memories of {sorted(self._waiting)}, which no part of this stage has")

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Collect the JSON values of every part. A part without any (also one that has only tensors) has an empty mapping.

        Raises:
            TypeError: a value is neither a tensor nor JSON.
        """
        out = {name: {k: v for k, v in state.items() if not isinstance(v, torch.Tensor)} for name, state in self._states().items()}
        for name, state in out.items():
            try:
                json.dumps(state)
            except TypeError as error:
                raise TypeError(f"memory '{name}': {error}; a state holds JSON values, and tensors directly under their names") from error
        return out

    def tensors(self) -> dict[str, torch.Tensor]:
        """Collect the tensors of every part as `<part>/<name>`: the live ones, so write them before the next step."""
        states = self._states()
        return {f"{name}/{k}": v for name, state in states.items() for k, v in state.items() if isinstance(v, torch.Tensor)}

    def _states(self) -> dict[str, dict[str, Any]]:
        return {name: part.state_dict() for name, part in sorted(self._parts.items())}
