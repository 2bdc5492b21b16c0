"""What a promise leaves behind: numbers with their limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Check:
    """One measured number."""

    promise: str
    case: str
    what: str
    value: float
    limit: float
    control: bool = False
    """A mistake made on purpose: the number has to be above the limit, else the check beside it could not see the mistake."""
    note: str = ""

    @property
    def ok(self) -> bool:
        """NaN, of something that could not run, is no success."""
        return self.value > self.limit if self.control else self.value <= self.limit


def equal(promise: str, case: str, what: str, same: bool, note: str = "") -> Check:
    """Something that is so or is not: 0 or 1 beside the limit 0."""
    return Check(promise, case, what, 0.0 if same else 1.0, 0.0, note="" if same else note)


def broken(promise: str, case: str, what: str, error: Exception) -> Check:
    """Something that raised."""
    first = str(error).split("\n")[0]
    return Check(promise, case, what, math.nan, 0.0, note=f"{type(error).__name__}: {first}"[:200])


def apart(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Largest absolute difference."""
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in zip(ours, theirs, strict=True))


def relative(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """L2 norm of the difference over that of `theirs`, all tensors as one vector."""
    gap = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(ours, theirs, strict=True))
    size = sum(float(b.double().square().sum()) for b in theirs)
    return math.sqrt(gap / size) if size else math.inf


def gradients(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Of every parameter, zeros where the loss does not depend on it."""
    found = torch.autograd.grad(loss, list(parameters), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]
