"""sampling.vas: scores, draws, the mixture with uniform epochs, refresh."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vlmrl.sampling.uniform  # noqa: F401 (registers)
from tests.support.samplers import G, broken_states, ids, resumes, run
from vlmrl.errors import CheckpointError
from vlmrl.protocols import sampler
from vlmrl.sampling.ledger import Ledger
from vlmrl.zoo.sampling.vas import VasSampler, draw, normalise, score

IDS = [f"s{i}" for i in range(8)]


def make(names: list[str] = IDS, seed: int = 4, **more) -> VasSampler:
    out = sampler.bind("vas", more)(names, seed)
    assert isinstance(out, VasSampler)
    return out


def test_vas():
    rates, none = np.array([0.0, 0.25, 0.5, 1.0]), np.zeros(4)
    assert score(rates, none, alpha=0.8, beta=0.2) == pytest.approx([0.0, 0.6, 0.8, 0.0])
    assert score(rates, np.array([1.0, 0.5, 0.0, 0.25]), alpha=0.8, beta=0.2) == pytest.approx([0.2, 0.7, 0.8, 0.05])
    assert normalise(np.array([0.2, 0.7, 0.8, 0.2])) == pytest.approx([0.0, 5 / 6, 1.0, 0.0])
    assert normalise(np.array([0.3, 0.3])).tolist() == [1.0, 1.0]


def test_draws_are_in_proportion_and_never_of_weight_zero():
    uniforms = np.random.Generator(np.random.Philox(3)).random(6000)
    weights = np.array([0.0, 1.0, 0.0, 3.0, 2.0, 0.0])
    times = Counter(draw(weights, uniforms))
    assert set(times) == {1, 3, 4}
    expected = {1: 1000.0, 3: 3000.0, 4: 2000.0}
    assert sum((times[k] - e) ** 2 / e for k, e in expected.items()) < 13.8  # 99.9 percentile, 2 degrees of freedom
    assert draw(weights, np.array([0.0, 1 - 2**-53])) == [1, 4]
    assert draw(np.zeros(4), np.array([0.0, 0.3, 0.6, 0.99])) == [0, 1, 2, 3]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 4), st.integers(1, 11), st.integers(1, 5))
def test_without_a_share_it_is_the_uniform_sampler(seed: int, prompts: int, steps: int):
    plain = sampler.bind("uniform")(IDS, seed)
    assert run(make(seed=seed, share=0.0), Ledger(), range(steps), prompts) == run(plain, Ledger(), range(steps), prompts)


def test_weights_by_hand():
    ledger, one = Ledger(), make(refresh=2, half_life=1.0)
    ledger.observe("s0", rewards=[1.0, 0.0], lengths=[], step=0, diversity=0.5)
    ledger.observe("s1", rewards=[1.0, 1.0], lengths=[], step=0, diversity=0.1)
    one.plan(ledger, prompts=2, rollouts=G)
    # s0: .8 + .2 * .5; s1: .2 * .1; unseen: P = 1/2 and the mean diversity .3
    expected = [1.0, 0.0, *[(0.86 - 0.02) / 0.88] * 6]
    assert one.weights() == pytest.approx(expected)
    ledger.observe("s0", rewards=[0.0, 0.0], lengths=[], step=1)
    one.plan(ledger, prompts=2, rollouts=G)
    assert one.weights() == pytest.approx(expected)  # not due before step 2
    ledger.observe("s2", rewards=[1.0, 0.0], lengths=[], step=2)
    one.plan(ledger, prompts=2, rollouts=G)
    # s0: P fades from 0 to 1/4 in one step; s1: from 1 to 5/8 in two
    raw = np.array([0.8 * 0.75 + 0.1, 0.8 * 4 * 0.625 * 0.375 + 0.02, *[0.86] * 6])
    assert one.weights() == pytest.approx(normalise(raw).tolist())


def test_momentum_smooths_the_weights():
    plain, slow = make(refresh=1), make(refresh=1, momentum=0.75)
    for one in (plain, slow):
        ledger = Ledger()
        ledger.observe("s0", rewards=[1.0, 1.0], lengths=[], step=0)
        one.plan(ledger, prompts=1, rollouts=G)
        assert one.weights()[0] == 0.0
        ledger.observe("s0", rewards=[1.0, 0.0], lengths=[], step=1)
        ledger.observe("s1", rewards=[0.0, 0.0], lengths=[], step=1)
        one.plan(ledger, prompts=1, rollouts=G)
    assert plain.weights()[:3] == pytest.approx([1.0, 0.0, 1.0])
    assert slow.weights()[:3] == pytest.approx([0.25, 0.75, 1.0])


def test_the_whole_batch_weighted_leaves_out_weight_zero():
    ledger, one = Ledger(), make(share=1.0)
    for k in IDS[:4]:
        ledger.observe(k, rewards=[1.0, 1.0], lengths=[], step=0)
    plan = one.plan(ledger, prompts=200, rollouts=G)
    times = Counter(ids([plan]))
    assert set(times) == set(IDS[4:])
    assert sum((n - 50) ** 2 / 50 for n in times.values()) < 16.3  # 99.9 percentile, 3 degrees of freedom


def test_half_of_the_batch_keeps_whole_epochs():
    one = make()
    plans = run(one, Ledger(), range(4), 4)
    uniform_part = [p for plan in plans for i, p in enumerate(plan) if (i + 1) * 2 // 4 == i * 2 // 4]
    assert sorted(p.sample_id for p in uniform_part) == IDS


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9))
def test_resume(seed: int, before: int, prompts: int):
    resumes(lambda: make(seed=seed, momentum=0.5, refresh=2), before=before, after=4, prompts=prompts)


@settings(max_examples=10, deadline=None)
@given(st.permutations(IDS))
def test_the_weighted_part_does_not_depend_on_the_order_of_the_data(order: list[str]):
    assert run(make(order, share=1.0), Ledger(), range(4), 3) == run(make(share=1.0), Ledger(), range(4), 3)


def test_loading_is_strict():
    one = make()
    run(one, Ledger(), range(6), 4)
    good = one.state_dict()
    for state in [*broken_states(good), good | {"weights": [1.0]}, good | {"weights": [-1.0] * 8}, good | {"rates": {"s0": [1.0]}}]:
        with pytest.raises(CheckpointError):
            one.load_state_dict(state)
    assert one.state_dict() == good


@pytest.mark.parametrize("bad", [{"share": 1.1}, {"momentum": 1.0}, {"refresh": 0}, {"half_life": 0.0}, {"alpha": -1.0}])
def test_arguments_are_checked(bad: dict):
    with pytest.raises(ValueError, match="sampler 'vas'"):
        make(**bad)
