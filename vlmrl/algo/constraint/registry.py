"""What all constraints and regularisers with a memory share: the shape of the memory, and the registry.

A registered method is a pure update: (dual, measured, *, arguments) -> dual. `dual` maps names to numbers (JSON values: the trainer
stores it in its run state and nothing else); `measured` maps names to sums and counts of one step over all ranks. A method called
with an empty dual returns its starting values, so that there is no separate set-up: before the first step the trainer calls
`update({}, {})`, uses the dual for the step, and calls `update(dual, measured)` with the step's measurements afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vlmrl.registry import Registry


@dataclass(frozen=True, slots=True)
class PartialMean:
    """A mean that still adds up: sums over micro-batches and ranks come before the division."""

    total: float
    count: int

    @property
    def mean(self) -> float:
        """NaN where nothing was counted."""
        return self.total / self.count if self.count else float("nan")


def merge(parts: list[Mapping[str, PartialMean]]) -> dict[str, PartialMean]:
    """Add up measurements, name by name; every rank that merges the same parts gets the same numbers."""
    out: dict[str, PartialMean] = {}
    for part in parts:
        for name, value in part.items():
            before = out.get(name, PartialMean(0.0, 0))
            out[name] = PartialMean(before.total + value.total, before.count + value.count)
    return out


constraint: Registry[Callable[..., dict[str, float]]] = Registry("constraint")
"""(dual, measured) -> dual. Each entry says with `acts_on` where its dual goes, and brings the functions that this takes:

* `advantage`: `apply(AdvantageInputs with the raw rewards, advantage [N], dual) -> advantage [N]`, and
  `measure(AdvantageInputs, names of the dual) -> {name: PartialMean}` over all ranks;
* `loss`: `measure(LossInputs of this rank's minibatch, without gradient) -> {name: PartialMean}`, added up over the ranks, then the update
  of the dual, then `term(LossInputs, dual, measured) -> [B, T]`, whose plain sum over all micro-batches is added to the loss;
* `beta`: the dual's `kl` is the weight of the divergence, and the update is given the measured divergence under the same name.
"""
