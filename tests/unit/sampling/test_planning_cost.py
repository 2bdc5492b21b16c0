"""Adaptive samplers plan from arrays that follow the ledger: the same plans as row by row, at the cost of what has changed."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from tests.support.plain_samplers import Plain, PlainPrioritized, PlainVade, PlainVas
from vlmrl.methods import registries
from vlmrl.protocols import PromptSampler, sampler
from vlmrl.sampling.base import Powers, Writes, first_places, looked_at
from vlmrl.sampling.ledger import Ledger, LedgerRow

registries()  # `vas` is of the zoo
PLAIN: dict[str, type[Plain]] = {"vade": PlainVade, "prioritized": PlainPrioritized, "vas": PlainVas}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("vade", {}),
    ("vade", {"signal": "reward", "lam1": 0.37, "lam2": 0.913}),
    ("vade", {"max_visits": 1, "lam2": 0.0}),
    ("vade", {"max_visits": 2, "lam1": 1.0, "lam2": 1.0}),
    ("prioritized", {}),
    ("prioritized", {"g": 0.63, "eps": 0.011, "half_life": 7.3, "signal": "reward"}),
    ("vas", {}),
    ("vas", {"share": 0.8, "refresh": 1, "momentum": 0.31, "half_life": 13.7, "alpha": 0.41}),
    ("vas", {"share": 1.0, "refresh": 3, "beta": 0.0}),
]


def observe(ledger: Ledger, names: list[str], step: int, chance: random.Random) -> None:
    """What a step may bring: some planned samples are never answered, some groups are judged in part or not at all."""
    for name in names:
        if chance.random() < 0.85:
            rewards = [chance.choice([0.0, 0.25, 1.0, chance.random() * 3 - 1]) for _ in range(chance.randrange(5))]
            ledger.observe(name, rewards=rewards, lengths=[3], step=step, diversity=chance.choice([None, 0.0, chance.random()]))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(OPTIONS)])
def test_plans_are_those_of_the_formula_row_by_row(name: str, options: dict[str, Any], seed: int) -> None:
    chance = random.Random(1000 * seed + len(name))
    n = chance.choice([1, 2, 5, 17, 60])
    names = [f"s{chance.randrange(10**9)}-{i}" for i in range(n)]
    make = sampler.bind(name, options)
    ledger, one, plain = Ledger(), make(names, seed), PLAIN[name](names, seed, **options)
    for i in range(chance.randrange(4)):  # an earlier stage, with samples that are not of this one
        observe(ledger, [f"other{i}", chance.choice(names)], i, chance)
    step = 4
    for _ in range(40):
        prompts = chance.choice([1, 2, 3, n, n + 2, 2 * n + 1]) if chance.random() < 0.3 else min(4, n)
        plan = [planned.sample_id for planned in one.plan(ledger, prompts=prompts, rollouts=2)]
        assert plan == plain.plan(ledger, prompts)
        if chance.random() < 0.8:  # else the step is planned again: a replacement
            observe(ledger, plan, step, chance)
            step += chance.choice([0, 1, 1, 1, 9])
        if chance.random() < 0.15:  # killed and resumed, with a ledger from a file
            state, memory = (json.loads(json.dumps(x.state_dict())) for x in (one, ledger))
            one, ledger = make(names, seed), Ledger()
            one.load_state_dict(state)
            ledger.load_state_dict(memory)


class Counted(Ledger):
    """A ledger that counts how often a row is read."""

    reads = 0

    def row(self, sample_id: str) -> LedgerRow:
        self.reads += 1
        return super().row(sample_id)


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_a_plan_reads_the_rows_that_changed_and_no_others(name: str) -> None:
    names, prompts, ledger = [f"s{i}" for i in range(3000)], 8, Counted()
    one: PromptSampler = sampler.bind(name)(names, 0)
    for step, sample_id in enumerate(names[:2000]):
        ledger.observe(sample_id, rewards=[float(step % 2)], lengths=[1], step=step, diversity=0.5)
    one.plan(ledger, prompts=prompts, rollouts=2)  # the first look is at everything
    for step in range(2000, 2012):
        ledger.reads = 0
        plan = one.plan(ledger, prompts=prompts, rollouts=2)
        assert ledger.reads <= 5 * prompts
        for planned in plan:
            ledger.observe(planned.sample_id, rewards=[1.0], lengths=[1], step=step, diversity=0.5)


@pytest.mark.parametrize("seed", range(20))
def test_first_places_are_the_beginning_of_a_stable_sort(seed: int) -> None:
    chance = np.random.default_rng(seed)
    keys = chance.choice([0.0, -0.0, 0.5, 1.0, np.inf, -np.inf, chance.random()], size=chance.integers(1, 40))
    whole = np.argsort(keys, kind="stable").tolist()
    assert [first_places(keys, k) for k in range(1, len(keys) + 3)] == [whole[:k] for k in range(1, len(keys) + 3)]


def test_looked_at_is_enough_and_not_more_than_all() -> None:
    assert looked_at(3, [set(), {"a", "b"}], 100) == 5
    assert looked_at(3, [{"a"}, {"a", "b"}], 5) == 5


def test_powers_are_pythons() -> None:
    power = Powers(lambda age: 0.913**age)
    ages = np.array([0, 3, 7, 3])
    assert power.of(ages).tolist() == [0.913**age for age in (0, 3, 7, 3)]
    assert power.of(np.array([500, 1])).tolist() == [0.913**500, 0.913]
    assert power.of(np.array([], dtype=np.int64)).tolist() == []


def test_a_ledger_tells_what_was_written() -> None:
    ledger, look = Ledger(), Writes()
    assert look.read(ledger) == []
    for step, name in enumerate("abab"):
        ledger.observe(name, rewards=[], lengths=[], step=step)
    assert sorted(look.read(ledger)) == ["a", "b"]
    assert look.read(ledger) == []
    ledger.observe("c", rewards=[1.0], lengths=[], step=9)
    with pytest.raises(ValueError, match="after step"):
        ledger.observe("a", rewards=[], lengths=[], step=0)
    assert look.read(ledger) == ["c"]
    other = Ledger()
    other.observe("z", rewards=[1.0], lengths=[], step=0)
    assert look.read(other) == ["z"], "another ledger is read from its beginning"
    ledger.load_state_dict(other.state_dict())
    assert sorted(Writes().read(ledger)) == sorted(look.read(ledger)) == ["a", "b", "c", "z"], "rows that a load removed have changed too"
