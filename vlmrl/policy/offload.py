"""Activations in the machine's memory from forward to backward, by torch's hooks on saved tensors.

What a forward pass keeps for its backward pass leaves the device as soon as it is kept, and comes back when backward asks for it.
Parameters stay: a copy of them would free nothing. With recomputation only the inputs of layers are kept, so they alone travel, and what
a layer is recomputed for stays on the device.

Copies have the bits, the strides and the alignment of what they are copies of, so kernels of the backward pass do what they would have
done. They are made on the stream of the computation: nothing runs ahead, and each copy costs its time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

SMALLEST = 1024
"""Bytes of the smallest tensor that travels: for less, a copy costs more than the room is worth."""
SPARSEST = 2
"""Largest room that a tensor with gaps takes, as a multiple of its numbers; one with more stays."""
ALIGNED = 64
"""Bytes that the storages of both sides are aligned to; where in them a tensor begins is kept, to this multiple."""


@dataclass(frozen=True, slots=True)
class Away:
    """A tensor in the machine's memory, and where it belongs."""

    host: torch.Tensor
    device: torch.device
    lead: int
    """Numbers between an aligned address and the first one of the tensor."""


def offloaded(policy: Any, *, on: bool) -> AbstractContextManager[Any]:
    """Context of a forward pass; the backward pass need not be inside.

    Args:
        policy: its parameters stay where they are.
        on: False gives a context that does nothing.
    """
    if not on:
        return nullcontext()
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
    lead = tensor.storage_offset() * size % ALIGNED // size
    host = _like(tensor, room, lead, torch.device("cpu"), _pinned(tensor.device))
    host.copy_(tensor, non_blocking=True)
    return Away(host, tensor.device, lead)


def give_back(kept: torch.Tensor | Away) -> torch.Tensor:
    """The tensor on its device again."""
    if isinstance(kept, torch.Tensor):
        return kept
    back = _like(kept.host, _room(kept.host), kept.lead, kept.device, torch.empty)
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


def _like(tensor: torch.Tensor, room: int, lead: int, device: torch.device, allocate: Callable[..., torch.Tensor]) -> torch.Tensor:
    """A fresh tensor of the same type, shape and strides, `lead` numbers behind an aligned address."""
    flat = allocate(lead + room, dtype=tensor.dtype, device=device)
    return flat.as_strided(tensor.shape, tensor.stride(), lead)


def _pinned(device: torch.device) -> Callable[..., torch.Tensor]:
    """Page-locked memory, which a GPU copies to and from by itself."""

    def allocate(numbers: int, **how: Any) -> torch.Tensor:
        return torch.empty(numbers, pin_memory=device.type == "cuda", **how)

    return allocate
