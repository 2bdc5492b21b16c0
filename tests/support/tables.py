"""The table of a step with what its methods need, made as a stage makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.train.stage import providers  # noqa: F401 (registers them)
from vlmrl.train.stage.algorithm import Batch, Bound
from vlmrl.train.stage.provide import Providers
from vlmrl.train.stage.table import RewardTable, reward_table
from vlmrl.types import ScoredGroup


def table_for(
    groups: Sequence[tuple[int, ScoredGroup]], *needs: str, baseline: Callable[[str], float | None] = lambda _: None
) -> RewardTable:
    """The table at a stage's beginning, for a method with these needs: those whose providers ask for no model."""
    table = reward_table(groups, baseline=baseline, progress=0.0)
    method = Bound(slot="advantage", name="test", call=lambda x: x, extra={"needs": needs}, arguments={}, defaults={})
    x: AdvantageInputs = Providers.of([method]).of_rollouts(None, Batch.of(list(groups), table), needs)  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(table, inputs=x)
