"""Activations in the machine's memory from forward to backward, by torch's hooks on saved tensors.

What a forward pass keeps for its backward pass leaves the device as soon as it is kept, and comes back when backward asks for it.
Parameters stay: a copy of them would free nothing. With recomputation only the inputs of layers are kept, so they alone travel, and what
a layer is recomputed for stays on the device.

Copies have the bits, the strides and the alignment of what they are copies of, so kernels of the backward pass do what they would have
done. They are made on the stream of the computation: nothing runs ahead, and each copy costs its time. That stream also orders what comes
after each other in the same place of the machine's memory (`scale.arena`), which is free again when a backward pass is over.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from vlmrl.extras.scale.arena import ALIGNED, Arena

SMALLEST = 1024
"""Bytes of the smallest tensor that travels: for less, a copy costs more than the room is worth."""
SPARSEST = 2
"""Largest room that a tensor with gaps takes, as a multiple of its numbers; one with more stays."""

_ARENAS: dict[torch.device, Arena] = {}


@dataclass(frozen=True, eq=False)
class Away:
    """A tensor in the machine's memory, and where it belongs."""

    host: torch.Tensor
    device: torch.device
    lead: int
    """Numbers between an aligned address and the first one of the tensor."""


def offloaded(policy: Any) -> AbstractContextManager[Any]:
    """Context of a forward pass; the backward pass need not be inside. Parameters of the policy stay where they are."""
    stay = {_storage(parameter) for parameter in policy.model.parameters()}
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: take(tensor, stay), give_back)


def take(tensor: torch.Tensor, stay: set[int]) -> torch.Tensor | Away:
    """What is kept of a tensor: a copy in the machine's memory, or the tensor itself.

    Args:
        stay: storages that stay on the device (`_storage`).
    """
    size = tensor.element_size()
    if tensor.numel() * size < SMALLEST or tensor.layout is not torch.strided or _storage(tensor) in stay:
        return tensor
    room = _room(tensor)
    if room > SPARSEST * tensor.numel() or _overlaps(tensor, room):
        return tensor
    lead = int(tensor.storage_offset()) * size % ALIGNED // size
    arena = _ARENAS.setdefault(tensor.device, Arena(pinned=tensor.device.type == "cuda"))
    away = Away(_like(tensor, arena.take(lead + room, tensor.dtype), lead), tensor.device, lead)
    weakref.finalize(away, arena.give_back)
    away.host.copy_(tensor, non_blocking=True)
    return away


def give_back(kept: torch.Tensor | Away) -> torch.Tensor:
    """The tensor on its device again."""
    if isinstance(kept, torch.Tensor):
        return kept
    back = _like(kept.host, torch.empty(kept.lead + _room(kept.host), dtype=kept.host.dtype, device=kept.device), kept.lead)
    back.copy_(kept.host, non_blocking=True)
    return back


def _storage(tensor: torch.Tensor) -> int:
    """What tells one storage from another while both are there."""
    return tensor.untyped_storage()._cdata


def _room(tensor: torch.Tensor) -> int:
    """Numbers from the first to the last one, gaps included."""
    return 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _overlaps(tensor: torch.Tensor, room: int) -> bool:
    """Whether several elements lie at one place, as in an expanded tensor."""
    return room < tensor.numel() or any(stride == 0 and n > 1 for n, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _like(tensor: torch.Tensor, flat: torch.Tensor, lead: int) -> torch.Tensor:
    """In the memory `flat`, which begins at an aligned address: a tensor of the same shape and strides, `lead` numbers behind that."""
    return flat.as_strided(tensor.shape, tensor.stride(), flat.storage_offset() + lead)
