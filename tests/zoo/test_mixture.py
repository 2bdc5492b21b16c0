"""sampling.mixture: exact shares in every batch, whole epochs within a source."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.samplers import broken_states, infos, resumes
from vlmrl.errors import CheckpointError
from vlmrl.protocols import sampler
from vlmrl.sampling.ledger import Ledger
from vlmrl.zoo.sampling.mixture import MixtureSampler

LEDGER = Ledger()
ROWS = infos(12, task=["a", "b", "a", "c"], origin=["x", "y", "x"])
TASK = {row.id: row.task for row in ROWS}


def make(rows=ROWS, seed: int = 0, **more) -> MixtureSampler:
    out = sampler.bind("mixture", more)(rows, seed)
    assert isinstance(out, MixtureSampler)
    return out


def test_mixture():
    plan = make(weights={"a": 2.0, "b": 1.0, "c": 1.0}).plan(LEDGER, prompts=8, rollouts=3)
    assert [TASK[p.sample_id] for p in plan] == ["a", "b", "c", "a", "a", "b", "c", "a"]
    assert {p.num_generations for p in plan} == {3}


def test_shares_by_size_when_no_weights_are_given():
    one = make()
    assert one.shares == {"a": 0.5, "b": 0.25, "c": 0.25}
    plan = one.plan(LEDGER, prompts=12, rollouts=1)
    assert sorted(p.sample_id for p in plan) == sorted(TASK)
    assert {p.epoch for p in plan} == {0}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 10), min_size=3, max_size=3), st.integers(1, 60), st.integers(0, 3))
def test_no_source_strays_from_its_share(weights: list[float], prompts: int, seed: int):
    one = make(seed=seed, weights=dict(zip("abc", weights, strict=True)))
    seen: Counter[str] = Counter()
    for t, p in enumerate(one.plan(LEDGER, prompts=prompts, rollouts=1), start=1):
        seen[TASK[p.sample_id]] += 1
        for name, share in one.shares.items():
            assert abs(seen[name] - share * t) < 3


def test_two_sources_stay_within_one():
    one = make(infos(5, task=["a", "b"]), weights={"a": 0.37, "b": 0.63})
    drawn = 0
    for t, p in enumerate(one.plan(LEDGER, prompts=300, rollouts=1), start=1):
        drawn += p.sample_id in ("s0", "s2", "s4")
        assert abs(drawn - 0.37 * t) <= 1


def test_each_source_comes_in_whole_epochs():
    plan = make(weights={"a": 1.0, "b": 5.0, "c": 1.0}).plan(LEDGER, prompts=70, rollouts=1)
    b = [p for p in plan if TASK[p.sample_id] == "b"]
    for start in range(0, len(b) - 2, 3):
        assert sorted(p.sample_id for p in b[start : start + 3]) == ["s1", "s5", "s9"]
        assert {p.epoch for p in b[start : start + 3]} == {start // 3}


def test_a_tag_can_name_the_source_and_weight_zero_leaves_it_out():
    plan = make(by="origin", weights={"x": 1.0, "y": 0.0}).plan(LEDGER, prompts=16, rollouts=1)
    assert {p.sample_id for p in plan} == {row.id for row in ROWS if row.tags["origin"] == "x"}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9))
def test_resume(seed: int, before: int, prompts: int):
    resumes(lambda: make(seed=seed, weights={"a": 3.0, "b": 1.0, "c": 0.5}), before=before, after=4, prompts=prompts)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=6))
def test_batches_do_not_matter(batches: list[int]):
    one = make()
    stream = [p for size in batches for p in one.plan(LEDGER, prompts=size, rollouts=1)]
    assert stream == make().plan(LEDGER, prompts=sum(batches), rollouts=1)


def test_loading_is_strict():
    one = make()
    one.plan(LEDGER, prompts=5, rollouts=1)
    good = one.state_dict()
    other = make(weights={"a": 1.0, "b": 1.0, "c": 0.0}).state_dict()
    for state in [*broken_states(good), other, good | {"drawn": {"a": 1, "b": 1, "c": -1}}, good | {"drawn": {"a": 1, "b": 1, "c": 1.0}}]:
        with pytest.raises(CheckpointError):
            one.load_state_dict(state)
    assert one.state_dict() == good


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"weights": {"a": 1.0, "b": 1.0}}, r"without a weight: \['c'\]"),
        ({"weights": {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}}, r"without rows: \['d'\]"),
        ({"weights": {"a": -1.0, "b": 1.0, "c": 1.0}}, "not negative"),
        ({"weights": {"a": 0.0, "b": 0.0, "c": 0.0}}, "not all 0"),
        ({"by": "level"}, "sample 's0' has no tag 'level'"),
    ],
)
def test_arguments_are_checked(bad: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make(**bad)
    with pytest.raises(ValueError, match="unique ids"):
        make([ROWS[0], ROWS[0]])
