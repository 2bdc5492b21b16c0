"""train.stage.rewards: what a step tells the ledger, in plan order, whatever its groups are called."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.builders import group
from vlmrl.sampling.ledger import Ledger
from vlmrl.train.memory_ledger import MemoryLedger
from vlmrl.train.stage.rewards import Rewards
from vlmrl.types import ScoredGroup, Scores


def scored(name: str, sample_id: str, reward: float) -> ScoredGroup:
    one = group(["a"])
    prompt = dataclasses.replace(one.prompt, sample=dataclasses.replace(one.prompt.sample, id=sample_id))
    return ScoredGroup(
        group=dataclasses.replace(one, id=name, prompt=prompt), scores=Scores(columns=("r",), weights=(1.0,), rewards_GK=((reward,),))
    )


@pytest.mark.parametrize("name", ["rl/3/{}/x", "a/b/3/{}/x", "plain", ""])
def test_groups_are_observed_in_plan_order_whatever_their_ids_look_like(name: str) -> None:
    ledger = Ledger()
    runner: Any = SimpleNamespace(columns=[("r", 1.0, None)], observe=lambda counts: None)
    store: Any = None  # nothing is scored here
    state: Any = SimpleNamespace(ledger=ledger, step=3, global_step=3, verdicts={})
    rewards = Rewards(runner=runner, store=store, state=state, steps=9, memory=MemoryLedger())
    groups = [
        (place, scored(name.format(9 - place), sample_id, reward))
        for place, sample_id, reward in ((2, "c", 0.5), (0, "a", 1.0), (1, "b", 0.0))
    ]
    rewards.observe(groups)
    assert state.verdicts == {"r": 3}
    assert list(ledger.state_dict()["rows"]) == ["a", "b", "c"]
    assert [ledger.row(sample_id).mean for sample_id in "abc"] == [1.0, 0.0, 0.5]
