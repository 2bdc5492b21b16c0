"""sampling.prioritized: SPO's tracker and weights."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.samplers import broken_states, ids, resumes, run
from vlmrl.errors import CheckpointError
from vlmrl.protocols import sampler
from vlmrl.sampling.ledger import Ledger
from vlmrl.zoo.sampling.prioritized import PrioritizedSampler, decay, race, track, weight

IDS = [f"s{i}" for i in range(10)]


def make(names: list[str] = IDS, seed: int = 1, **more) -> PrioritizedSampler:
    out = sampler.bind("prioritized", more)(names, seed)
    assert isinstance(out, PrioritizedSampler)
    return out


def test_prioritized():
    a, b = track(2.0, 2.0, right=1.0, count=1, rho=0.5)
    assert a / (a + b) == pytest.approx(2 / 3)
    for v, expected in ((0.05, 0.268), (0.5, 0.55), (0.95, 0.268), (0.9, 0.35), (1.0, 0.05)):
        assert weight(v, 1 - v, g=0.0, eps=0.05) == pytest.approx(expected, abs=1e-3)
    a, b = track(2.2222, 5.7778, right=1.0, count=1, rho=decay(0.06, 0.06))
    assert a / (a + b) == pytest.approx(0.3681, abs=1e-4)
    a, b = track(2.2222, 5.7778, right=1.0, count=1, rho=decay(0.0, 0.06))
    assert a / (a + b) == pytest.approx(0.3610, abs=1e-4)


@given(st.floats(0.1, 20), st.floats(0.1, 20), st.floats(0, 1), st.floats(0.1, 1))
def test_the_tracker_is_a_moving_average(a: float, b: float, r: float, rho: float):
    after = track(a, b, right=r, count=1, rho=rho)
    v, rate = a / (a + b), 1 / (rho * (a + b) + 1)
    assert after[0] / sum(after) == pytest.approx(v + rate * (r - v))


def test_without_decay_it_is_the_posterior_mean():
    a, b = 0.5, 0.5
    for r in (1.0, 0.0, 1.0, 1.0):
        a, b = track(a, b, right=r, count=1, rho=1.0)
    assert (a, b) == (3.5, 1.5)


@given(st.floats(0, 1e3), st.floats(0.01, 10), st.floats(0, 1))
def test_decay_and_weights_stay_in_range(drift: float, half: float, g: float):
    assert 0.875 <= decay(drift, half) <= 0.96
    assert weight(3.0, 0.0, g=g, eps=0.05) == 0.05
    assert weight(2.0, 2.0, g=g, eps=0.05) > 0.05


def test_the_race_draws_in_proportion():
    generator = np.random.Generator(np.random.Philox(5))
    weights = np.array([1.0, 2.0, 5.0])
    first = Counter(race(weights, generator.random(3))[0] for _ in range(4000))
    expected = 4000 * weights / weights.sum()
    assert sum((first[i] - e) ** 2 / e for i, e in enumerate(expected)) < 13.8  # 99.9 percentile, 2 degrees of freedom
    assert sorted(race(weights, generator.random(3))) == [0, 1, 2]


def test_the_tracker_follows_the_ledger():
    ledger, one = Ledger(), make(half_life=8.0)
    ledger.observe("s0", rewards=[1.0, 1.0, 0.0, 1.0], lengths=[], step=0)
    one.plan(ledger, prompts=1, rollouts=4)
    a, b = 0.96 * 0.5 + 3, 0.96 * 0.5 + 1
    assert one.weight_of("s0") == pytest.approx(weight(a, b, g=0.0, eps=0.05))
    ledger.observe("s0", rewards=[0.0, 0.0], lengths=[], step=1)
    one.plan(ledger, prompts=1, rollouts=4)
    rho = 2 ** (-1 / 8)
    assert one.weight_of("s0") == pytest.approx(weight(rho * a, rho * b + 2, g=0.0, eps=0.05))
    assert one.weight_of("s1") == pytest.approx(0.55)


def test_uncertain_samples_come_more_often_and_none_is_forgotten():
    times = Counter(ids(run(make(), Ledger(), range(400), 2, rate=lambda k: 0.5 if k in ("s0", "s1") else 1.0)))
    assert min(times["s0"], times["s1"]) > 1.8 * max(times[k] for k in IDS[2:])
    assert min(times[k] for k in IDS) > 10


def test_a_second_plan_of_a_step_brings_others():
    one = make()
    assert len(set(ids([one.plan(Ledger(), prompts=5, rollouts=4) for _ in range(2)]))) == 10


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 3), st.integers(0, 6), st.integers(1, 12))
def test_resume(seed: int, before: int, prompts: int):
    resumes(lambda: make(seed=seed, g=0.5), before=before, after=3, prompts=prompts)


@settings(max_examples=15, deadline=None)
@given(st.permutations(IDS))
def test_the_order_of_the_data_is_irrelevant(order: list[str]):
    assert run(make(order), Ledger(), range(4), 3) == run(make(), Ledger(), range(4), 3)


def test_loading_is_strict():
    one = make()
    run(one, Ledger(), range(3), 4)
    good = one.state_dict()
    for state in [*broken_states(good), good | {"tracker": {"s0": [1.0]}}, good | {"news": {"nobody": [1, 1.0, 1, 1]}}]:
        with pytest.raises(CheckpointError):
            one.load_state_dict(state)
    assert one.state_dict() == good


@pytest.mark.parametrize("bad", [{"g": 2.0}, {"eps": 0.0}, {"half_life": 0.0}])
def test_arguments_are_checked(bad: dict):
    with pytest.raises(ValueError, match="sampler 'prioritized'"):
        make(**bad)
