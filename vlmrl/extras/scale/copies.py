"""Copies of weights and moments in host memory, from which a checkpoint is written while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from vlmrl.extras.scale.arena import Arena


class Copies:
    """Host memory for copies: taken at the first checkpoint and used again at every later one, so one may be written at a time."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}
        self._arenas: dict[bool, Arena] = {}

    @torch.no_grad()
    def take(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the tensors hold now; of tensors in shards, this rank's shards."""
        out: dict[str, torch.Tensor] = {}
        on_device = False
        for name, tensor in tensors.items():
            own = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
            held = self._held.get(name)
            if held is None or held.shape != own.shape or held.dtype != own.dtype:
                held = self._held[name] = self._room(own)
            held.copy_(own, non_blocking=own.is_cuda)
            on_device |= own.is_cuda
            out[name] = _like(tensor, held) if isinstance(tensor, DTensor) else held
        if on_device:
            torch.cuda.synchronize()
        return out

    def _room(self, own: torch.Tensor) -> torch.Tensor:
        arena = self._arenas.setdefault(own.is_cuda, Arena(pinned=own.is_cuda))
        return arena.take(own.numel(), own.dtype).view(own.shape)


def _like(tensor: Any, local: torch.Tensor) -> torch.Tensor:
    """A shard with the same place in the whole. Not `from_local`, which would move it to the mesh's device."""
    return DTensor(local, tensor._spec, requires_grad=False)  # pyright: ignore[reportCallIssue]
