"""Backward passes of attention that add up in a fixed order, in deterministic mode on CUDA.

torch's attention kernels add up the gradient of the queries in any order unless errors are asked for: with warnings, which is what a run
asks for so that no other operation stops it, they warn and go on. So errors are asked for around these backward passes, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

UNORDERED = frozenset({"cuda"})
"""Types of device whose attention has a backward without an order."""


def wanted() -> bool:
    """Whether the run is deterministic and asks for warnings alone."""
    return torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()


@contextmanager
def in_order() -> Iterator[None]:
    """Open a context in which deterministic mode raises errors instead of warnings; without that mode it changes nothing."""
    if not wanted():
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)


def ordered(attend: Callable[[Tensor, Tensor, Tensor], Any], query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Call `attend`, whose backward keeps its order where the run is deterministic. It returns a tensor, or a tuple with one in front."""
    if query.device.type not in UNORDERED or not torch.is_grad_enabled():
        return attend(query, key, value)
    if _First.open:  # a backward ended between the two, as one does that runs out of memory
        _warnings_again()
    if not wanted():
        return attend(query, key, value)
    inputs: Any = _Last.apply(query, key, value)
    with in_order():  # forward chooses the kernel: of several, one has no order that could be asked for
        out = attend(*inputs)
    return (_First.apply(out[0]), *out[1:]) if isinstance(out, tuple) else _First.apply(out)


def _warnings_again() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    _First.open = False


class _First(torch.autograd.Function):
    """Behind the attention: the first of its backward, where errors are switched on."""

    open = False
    """Whether the last of that backward is still to come."""

    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        torch.use_deterministic_algorithms(True)
        _First.open = True
        return grads[0]


class _Last(torch.autograd.Function):
    """In front of the attention: the last of its backward, where warnings are back."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        _warnings_again()
        return grads
