"""sampling.curriculum_gui: levels by trajectory length, replay, understanding rows, ends of levels."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vlmrl.sampling.uniform  # noqa: F401 (registers)
from tests.support.samplers import G, broken_states, ids, infos, resumes, run
from vlmrl.errors import CheckpointError
from vlmrl.protocols import sampler
from vlmrl.sampling.curriculum_gui import CurriculumSampler, level_of, quantile_edges
from vlmrl.sampling.info import SampleInfo
from vlmrl.sampling.ledger import Ledger

LENGTHS = ["2", "5", "9", "3", "8", "12", ""]
ROWS = [
    SampleInfo(id=row.id, task=row.task, tags={k.replace("__", "."): v for k, v in row.tags.items()})
    for row in infos(28, trajectory__length=LENGTHS)
]
LEVEL = {row.id: level_of(float(row.tags.get("trajectory.length", "nan")), (3, 8)) for row in ROWS if row.tags}
UNDERSTANDING = {row.id for row in ROWS if not row.tags}


def make(rows=ROWS, seed: int = 0, **more) -> CurriculumSampler:
    out = sampler.bind("curriculum_gui", more)(rows, seed)
    assert isinstance(out, CurriculumSampler)
    return out


def kind(sample_id: str) -> int:
    return LEVEL.get(sample_id, -1)


def test_curriculum_gui():
    assert [level_of(n, (3, 8)) for n in (1, 3, 4, 8, 9, 30)] == [0, 0, 1, 1, 2, 2]
    assert Counter(LEVEL.values()) == {0: 8, 1: 8, 2: 8}
    plan = make(replay=0.0, understanding_share=0.0).plan(Ledger(), prompts=32, rollouts=G)
    assert [kind(p.sample_id) for p in plan] == [0] * 8 + [1] * 8 + [2] * 16
    for start in (0, 8, 16, 24):
        assert len({p.sample_id for p in plan[start : start + 8]}) == 8


def test_quantiles_part_the_corpus_evenly():
    assert quantile_edges([1, 2, 3, 4, 5, 6], 3) == (2, 4)
    assert quantile_edges([1, 1, 1, 1, 5, 6], 3) == (1,)
    assert quantile_edges([4, 4], 2) == ()
    levels = Counter(level_of(v, quantile_edges(list(range(30)), 3)) for v in range(30))
    assert levels == {0: 10, 1: 10, 2: 10}


def test_replay_and_understanding_shares():
    plans = make(seed=5, stage_epochs=60.0).plan(Ledger(), prompts=2600, rollouts=G)
    stages: list[list[int]] = [[], [], []]
    level = 0
    left = 8 * 60
    for p in plans:
        own = kind(p.sample_id)
        stages[level].append(own)
        left -= own == level
        if left == 0 and level < 2:
            level, left = level + 1, 8 * 60
    assert set(stages[0]) == {0}
    n, m = len(stages[1]), len(stages[2])
    assert abs(Counter(stages[1])[0] - 0.2 * n) < 3 * math.sqrt(0.2 * 0.8 * n)
    assert -1 not in stages[1]
    assert abs(Counter(stages[2])[-1] - 0.3 * m) < 3 * math.sqrt(0.3 * 0.7 * m)
    replayed = Counter(stages[2])[0] + Counter(stages[2])[1]
    assert abs(replayed - 0.7 * 0.2 * m) < 3 * math.sqrt(0.14 * 0.86 * m)


def test_understanding_can_enter_earlier():
    first = make(understanding_from=1, understanding_share=0.9).plan(Ledger(), prompts=20, rollouts=G)
    assert UNDERSTANDING & {p.sample_id for p in first}
    assert not UNDERSTANDING & {p.sample_id for p in make(understanding_share=0.9, replay=0.0).plan(Ledger(), prompts=16, rollouts=G)}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 4), st.integers(1, 11), st.integers(1, 5))
def test_without_edges_it_is_the_uniform_sampler(seed: int, prompts: int, steps: int):
    rows = [row for row in ROWS if row.tags]
    plain = sampler.bind("uniform")([row.id for row in rows], seed)
    assert run(make(rows, seed, edges=()), Ledger(), range(steps), prompts) == run(plain, Ledger(), range(steps), prompts)


def test_a_level_that_stalls_ends_early():
    def level_after(rate) -> int:
        one = make(stage_epochs=1000.0, window=4, patience=4, replay=0.0)
        run(one, Ledger(), range(12), 4, rate=rate)
        return one.level

    assert level_after(lambda _: 0.0) == 2
    steps = iter(range(10**6))
    assert level_after(lambda _: min(1.0, next(steps) / 48)) == 0


def test_stalled_windows_by_hand():
    rows, ledger = [row for row in ROWS if row.tags], Ledger()
    one = make(rows, stage_epochs=1000.0, window=2, patience=2, gain=0.05)
    one.plan(ledger, prompts=1, rollouts=G)
    # windows of two groups with mean pass rates .25, .5, .5, .5: the third and fourth gain nothing
    for step, rate in enumerate([0.0, 0.5, 0.5, 0.5, 0.25, 0.75, 1.0]):
        ledger.observe("s0", rewards=[float(k < 4 * rate) for k in range(4)], lengths=[], step=step)
        one.plan(ledger, prompts=1, rollouts=G)
        assert one.level == 0
    ledger.observe("s0", rewards=[0.0] * 4, lengths=[], step=7)
    one.plan(ledger, prompts=1, rollouts=G)
    assert one.level == 1


def test_what_an_earlier_stage_observed_ends_no_level():
    ledger = Ledger()
    for row in ROWS:
        ledger.observe(row.id, rewards=[0.0], lengths=[], step=0)
    one = make(window=1, patience=1)
    one.plan(ledger, prompts=1, rollouts=G)
    assert one.level == 0


def test_pass_rate_as_difficulty_runs_from_high_to_low():
    rows = infos(6, pass_rate=["0.9", "0.5", "0.1"])
    plan = make(rows, tag="pass_rate", edges=(0.25, 0.75), easier="high", replay=0.0).plan(Ledger(), prompts=6, rollouts=G)
    assert [rows[int(p.sample_id[1:])].tags["pass_rate"] for p in plan] == ["0.9", "0.9", "0.5", "0.5", "0.1", "0.1"]


def test_empty_levels_are_skipped():
    rows = infos(4, length=["1", "9"])
    plan = make(rows, tag="length", replay=0.0).plan(Ledger(), prompts=4, rollouts=G)
    assert [rows[int(p.sample_id[1:])].tags["length"] for p in plan] == ["1", "1", "9", "9"]


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_shuffling_the_data_keeps_the_schedule(random):
    shuffled = list(ROWS)
    random.shuffle(shuffled)
    plans = [run(make(rows, stage_epochs=2.0), Ledger(), range(8), 6, rate=lambda _: 0.5) for rows in (ROWS, shuffled)]
    # the same kinds of pools in the same order; which row of a pool it is may differ
    assert [kind(k) == 2 for k in ids(plans[0])] == [kind(k) == 2 for k in ids(plans[1])]
    assert [kind(k) == -1 for k in ids(plans[0])] == [kind(k) == -1 for k in ids(plans[1])]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9))
def test_resume_mid_level(seed: int, before: int, prompts: int):
    resumes(lambda: make(seed=seed, window=3, patience=2), before=before, after=4, prompts=prompts)


def test_loading_is_strict():
    one = make()
    run(one, Ledger(), range(4), 5)
    good = one.state_dict()
    other = make(edges=(3,)).state_dict()
    bad = [*broken_states(good), other, good | {"level": 7}, good | {"positions": {"level0": 1}}, good | {"news": {"s0": [1]}}]
    for state in bad:
        with pytest.raises(CheckpointError):
            one.load_state_dict(state)
    assert one.state_dict() == good


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tag": "length"}, "no row has the tag 'length'"),
        ({"replay": 1.0}, "replay 1.0"),
        ({"understanding_from": 4}, r"must lie in \[1, 3\]"),
        ({"quantiles": 0}, "quantiles 0"),
        ({"window": 0}, "window 0"),
    ],
)
def test_arguments_are_checked(bad: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make(**bad)
    with pytest.raises(ValueError, match="is 'long', not a number"):
        make(infos(2, length=["1", "long"]), tag="length")
