"""Calls between ranks, counted as torch dispatches them: whoever makes them, FSDP and DeepSpeed included."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

GATHERS, SUMS = ("_allgather_base_", "allgather_"), ("allreduce_", "_reduce_scatter_base_", "reduce_scatter_", "reduce_", "broadcast_")


class Calls(TorchDispatchMode):
    """Context that counts the calls of this thread. Groups are called as `new_group` and meshes describe them: `control`, `default_pg`,
    `mesh_replicate`, `mesh_shard`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str]] = Counter()
        """(operation, group) -> calls."""
        self.bytes: Counter[tuple[str, str]] = Counter()
        """(operation, group) -> bytes of the larger side."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func.namespace == "c10d":
            scripted = [one for one in args if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type())]
            key = (func.__name__.split(".")[0], ProcessGroup.unbox(scripted[0]).group_desc)  # pyright: ignore[reportAttributeAccessIssue]
            self.calls[key] += 1
            self.bytes[key] += max(_size(one) for one in args)
        return func(*args, **(kwargs or {}))

    @property
    def groups(self) -> set[str]:
        return {group for _, group in self.calls}

    def of(self, group: str, *operations: str) -> int:
        """Calls of a group, of these operations or of all."""
        return sum(number for (name, desc), number in self.calls.items() if desc == group and (not operations or name in operations))

    def moved(self, operations: tuple[str, ...]) -> int:
        """Bytes of these operations."""
        return sum(number for (name, _), number in self.bytes.items() if name in operations)


def _size(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(_size(one) for one in value) if isinstance(value, (list, tuple)) else 0
