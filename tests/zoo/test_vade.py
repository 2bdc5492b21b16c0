"""sampling.vade: worked numbers of the project page, lazy against eager decay, who comes first."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.samplers import G, answer, broken_states, ids, resumes, run
from vlmrl.errors import CheckpointError
from vlmrl.protocols import sampler
from vlmrl.sampling.ledger import Ledger
from vlmrl.zoo.sampling.vade import VadeSampler, information, trained

make = sampler.bind("vade")
IDS = [f"s{i}" for i in range(12)]


def vade_sampler(names: list[str] = IDS, seed: int = 3, **more) -> VadeSampler:
    out = sampler.bind("vade", more)(names, seed)
    assert isinstance(out, VadeSampler)
    return out


def test_vade():
    assert trained(0.1, 1, unselected=0, lam1=0.2, lam2=0.999) == pytest.approx(1.02)
    assert trained(8.4, 7, unselected=0, lam1=0.2, lam2=0.999) == pytest.approx(8.68)
    assert trained(9.0, 0, unselected=1, lam1=1.0, lam2=0.999) == pytest.approx(8.991)


def test_information_peaks_at_a_third():
    p = np.linspace(0, 1, 3001)
    assert p[information(p).argmax()] == pytest.approx(1 / 3, abs=1e-3)
    assert information(p).max() == pytest.approx(4 / 27, abs=1e-6)
    assert information(np.array([0.0, 1.0])).tolist() == [0.0, 0.0]


def test_two_visits_by_hand():
    ledger, one = Ledger(), vade_sampler()
    ledger.observe("s0", rewards=[1.0, 0.0, 0.0, 0.0], lengths=[], step=0)
    one.plan(ledger, prompts=1, rollouts=G)
    assert one.posterior("s0") == pytest.approx((1.0, 3.0))
    ledger.observe("s1", rewards=[1.0], lengths=[], step=3)
    one.plan(ledger, prompts=1, rollouts=G)
    assert one.posterior("s0") == pytest.approx((0.999**3, 3 * 0.999**3))
    ledger.observe("s0", rewards=[1.0, 1.0, 0.2, 1.0], lengths=[], step=5)
    one.plan(ledger, prompts=1, rollouts=G)
    assert one.posterior("s0") == pytest.approx((0.2 * 0.999**4 + 3, 0.2 * 3 * 0.999**4 + 1))
    assert one.posterior("s1") == pytest.approx((0.999**2, 0.0))
    assert one.posterior("s9") == (0.0, 0.0)


def test_graded_rewards_are_clipped():
    ledger, one = Ledger(), vade_sampler(signal="reward")
    ledger.observe("s0", rewards=[0.25, 0.5], lengths=[], step=0)
    ledger.observe("s1", rewards=[3.0, 3.0], lengths=[], step=0)
    ledger.observe("s2", rewards=[-1.0], lengths=[], step=0)
    one.plan(ledger, prompts=1, rollouts=G)
    assert one.posterior("s0") == pytest.approx((0.75, 1.25))
    assert one.posterior("s1") == pytest.approx((2.0, 0.0))
    assert one.posterior("s2") == pytest.approx((0.0, 1.0))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5), st.integers(1, 9), st.integers(1, 5))
def test_lazy_decay_equals_eager_decay(seed: int, steps: int, prompts: int):
    ledger, one = Ledger(), vade_sampler(seed=seed)
    eager = {k: (0.0, 0.0) for k in IDS}
    for step in range(steps):
        plan = one.plan(ledger, prompts=prompts, rollouts=G)
        before = {k: ledger.row(k).passes for k in IDS}
        answer(ledger, plan, step)
        for k, (a, b) in eager.items():
            if k in ids([plan]):
                c = ledger.row(k).passes - before[k]
                eager[k] = (0.2 * a + c, 0.2 * b + G - c)
            else:
                eager[k] = (0.999 * a, 0.999 * b)
    one.plan(ledger, prompts=1, rollouts=G)
    for k in IDS:
        assert one.posterior(k) == pytest.approx(eager[k], rel=1e-9, abs=1e-12)


def test_fresh_state_is_uniform():
    times = Counter(k for seed in range(600) for k in ids([vade_sampler(seed=seed).plan(Ledger(), prompts=3, rollouts=G)]))
    expected = 600 * 3 / len(IDS)
    chi2 = sum((times[k] - expected) ** 2 / expected for k in IDS)
    assert chi2 < 31.3  # 99.9 percentile, 11 degrees of freedom


def test_informative_samples_come_more_often():
    one = vade_sampler()
    plans = run(one, Ledger(), range(150), 3, rate=lambda k: 0.33 if k in ("s0", "s1", "s2") else 1.0)
    late = Counter(ids(plans[50:]))
    assert min(late[k] for k in ("s0", "s1", "s2")) > 3 * max(n for k, n in late.items() if k not in ("s0", "s1", "s2"))


def test_a_solved_sample_returns_after_long_neglect():
    ledger, one = Ledger(), vade_sampler(lam2=0.5)
    for step in range(4):
        ledger.observe("s0", rewards=[1.0] * G, lengths=[], step=step)
        one.plan(ledger, prompts=1, rollouts=G)
    assert one.posterior("s0")[0] > G
    ledger.observe("s1", rewards=[1.0], lengths=[], step=60)
    one.plan(ledger, prompts=1, rollouts=G)
    assert sum(one.posterior("s0")) < 1e-6


def test_a_second_plan_of_a_step_brings_others():
    ledger, one = Ledger(), vade_sampler()
    first = one.plan(ledger, prompts=5, rollouts=G)
    second = one.plan(ledger, prompts=5, rollouts=G)
    assert len(set(ids([first, second]))) == 10
    third = one.plan(ledger, prompts=5, rollouts=G)
    assert set(ids([third])) > set(IDS) - set(ids([first, second]))


def test_visits_are_capped_per_epoch():
    for cap in (1, 2):
        plans = run(vade_sampler(max_visits=cap), Ledger(), range(36), 2)
        stream = ids(plans)
        for start in range(0, len(stream), len(IDS)):
            assert max(Counter(stream[start : start + len(IDS)]).values()) <= cap


def test_an_unjudged_group_is_no_evidence():
    ledger, one = Ledger(), vade_sampler()
    ledger.observe("s0", rewards=[], lengths=[4], step=0)
    one.plan(ledger, prompts=1, rollouts=G)
    assert one.posterior("s0") == (0.0, 0.0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 3), st.integers(0, 8), st.integers(1, 15))
def test_resume(seed: int, before: int, prompts: int):
    resumes(lambda: vade_sampler(seed=seed, max_visits=2), before=before, after=3, prompts=prompts)


@settings(max_examples=15, deadline=None)
@given(st.permutations(IDS))
def test_the_order_of_the_data_is_irrelevant(order: list[str]):
    assert run(vade_sampler(order), Ledger(), range(4), 3) == run(vade_sampler(), Ledger(), range(4), 3)


def test_loading_is_strict():
    one = vade_sampler()
    run(one, Ledger(), range(3), 4)
    good = one.state_dict()
    bad = [*broken_states(good), good | {"counts": {"nobody": [0.0, 0.0, 1]}}, good | {"counts": {"s0": [0.0, 1]}}]
    for state in bad:
        with pytest.raises(CheckpointError):
            one.load_state_dict(state)
    assert one.state_dict() == good


@pytest.mark.parametrize("bad", [{"lam1": 1.5}, {"lam2": -0.1}, {"max_visits": 0}])
def test_arguments_are_checked(bad: dict):
    with pytest.raises(ValueError, match="sampler 'vade'"):
        sampler.bind("vade", bad)(IDS, 0)
    with pytest.raises(ValueError, match="unique ids"):
        make(["a", "a"], 0)
