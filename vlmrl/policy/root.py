"""How the weights of a policy lie on the ranks, as far as a forward pass sees it: whole, or in shards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol, TypeVar

import torch

T = TypeVar("T")

Read = Literal["placed", "host", "none"]
"""What loading a model gives a rank: its weights on the device; its weights in the machine's memory, for an engine that takes them to the
device itself; or no weights, names and shapes on the meta device, for an engine that gets them from rank 0."""


class Shards(Protocol):
    """Placement of one policy's weights on the ranks."""

    @property
    def taken(self) -> bool:
        """Whether an engine has taken the model in, so that it gets no other parameters any more."""
        ...

    @property
    def collective(self) -> bool:
        """Whether a forward pass gathers weights: then all ranks make the same passes in the same order (`train.passes`)."""
        ...

    @property
    def open(self) -> bool:
        """Whether parameters can be read and changed in place, each rank its own part: what all ranks do alike to every number of them."""
        ...

    def run(self, fn: Callable[[], T]) -> T:
        """Call `fn`, in which the parts of the model may be called. Where `collective` holds, every rank makes this call."""
        ...

    def whole(self) -> AbstractContextManager[None]:
        """Open a context with all weights on every rank, in the compute type: inside, `collective` is False. Every rank enters and leaves
        it."""
        ...

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gather a parameter as one whole tensor, on every rank. Every rank calls it for the same ones in the same order."""
        ...

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """Show what this rank holds of a tensor, as a plain one over the same memory."""
        ...

    def put(self, value: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copy a whole tensor into a parameter. For weights that are `open`."""
        ...


class Unsharded:
    """Every rank holds everything."""

    taken = False
    collective = False
    open = True

    def run(self, fn: Callable[[], T]) -> T:
        return fn()

    def whole(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def put(self, value: torch.Tensor, tensor: torch.Tensor) -> None:
        tensor.copy_(value)
