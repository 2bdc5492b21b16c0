"""The batch of a step with what its methods need, made as a stage makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vlmrl.train.batch import StepBatch
from vlmrl.train.stage import providers  # noqa: F401 (registers them)
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.provide import Providers
from vlmrl.types import ScoredGroup


def batch_for(
    groups: Sequence[tuple[int, ScoredGroup]], *needs: str, baseline: Callable[[str], float | None] = lambda _: None
) -> StepBatch:
    """The batch at a stage's beginning, for a method with these needs: those whose providers ask for no model."""
    batch = StepBatch.of(list(groups), baseline=baseline, progress=0.0)
    method = Bound(slot="advantage", name="test", call=lambda x: x, extra={"needs": needs}, arguments={}, defaults={})
    Providers.of([method]).fill(None, batch, [method])
    return batch
