"""sampling.buffer: what enters, what is drawn, what leaves, strict state."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmrl.errors import CheckpointError
from vlmrl.types import Rollout, Scores
from vlmrl.zoo.sampling.buffer import Entry, SampleBuffer, wanted


def entry(name: str, *, version: int = 0, priority: float = 1.0) -> Entry:
    rollouts = (
        Rollout(k=0, ids=(5, 6), logprobs=(-0.1, -0.7), text="a", finish="stop", policy_version=version),
        Rollout(k=1, ids=(7,), logprobs=(), text="b", finish="length", policy_version=version, provenance="ground_truth"),
    )
    scores = Scores(columns=("acc", "fmt"), weights=(1.0, 0.5), rewards_GK=((1.0, None), (0.0, 1.0)), reasons={"fmt/parse": 1})
    return Entry(sample_id=name, inputs=f"of {name}", version=version, priority=priority, rollouts=rollouts, scores=scores)


def filled(n: int = 6, **more) -> SampleBuffer:
    buffer = SampleBuffer(capacity=10, seed=3, **more)
    buffer.push([entry(f"s{i}", version=i, priority=1.0 + i) for i in range(n)])
    return buffer


def names(entries) -> list[str]:
    return [e.sample_id for e in entries]


def test_wanted():
    assert [wanted(silent=z, batch=8) for z in (0, 3, 4, 8)] == [0, 3, 4, 4]
    assert wanted(silent=8, batch=8, max_share=1.0) == 8
    with pytest.raises(ValueError, match="silent 9 of batch 8"):
        wanted(silent=9, batch=8)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_groups_without_signal_never_enter(bad: float):
    buffer = filled()
    with pytest.raises(ValueError, match="sample 'x'"):
        buffer.push([entry("ok"), entry("x", priority=bad)])
    assert len(buffer) == 6


def test_the_oldest_leave_at_capacity():
    buffer = SampleBuffer(capacity=3, seed=0)
    for i in range(5):
        buffer.push([entry(f"s{i}")])
    assert names(buffer.entries) == ["s2", "s3", "s4"]


def test_stale_entries_are_never_drawn():
    buffer = filled(max_age=2)
    assert sorted(names(buffer.draw(9, step=0, version=6))) == ["s4", "s5"]
    assert len(buffer) == 2
    assert buffer.evict(8) == 2


def test_draws_are_without_replacement_and_each_entry_is_used_twice_at_most():
    buffer = filled()
    first = buffer.draw(4, step=0, version=6)
    assert len(set(names(first))) == 4
    second = buffer.draw(6, step=1, version=6)
    assert len(second) == 6
    assert sorted(names(buffer.entries)) == sorted({f"s{i}" for i in range(6)} - set(names(first)))
    assert sorted(names(buffer.draw(6, step=2, version=6))) == sorted({f"s{i}" for i in range(6)} - set(names(first)))
    assert buffer.draw(6, step=4, version=6) == []


def test_fresh_samples_are_left_out_and_a_sample_comes_once():
    buffer = filled()
    buffer.push([entry("s1", version=6)])
    drawn = names(buffer.draw(9, step=0, version=6, without=frozenset({"s0"})))
    assert sorted(drawn) == ["s1", "s2", "s3", "s4", "s5"]


def test_draws_grow_with_the_priority():
    times: Counter[str] = Counter()
    for step in range(3000):
        buffer = SampleBuffer(capacity=3, seed=1)
        buffer.push([entry("low", priority=0.5), entry("mid", priority=1.0), entry("high", priority=2.5)])
        times[names(buffer.draw(1, step=step, version=0))[0]] += 1
    expected = {"low": 375.0, "mid": 750.0, "high": 1875.0}
    assert sum((times[k] - e) ** 2 / e for k, e in expected.items()) < 13.8  # 99.9 percentile, 2 degrees of freedom


def test_replayed_rollouts_are_not_on_policy_and_keep_their_log_probs():
    replay, truth = entry("a").replayed()
    assert (replay.provenance, replay.on_policy, replay.logprobs) == ("replay", False, (-0.1, -0.7))
    assert truth.provenance == "ground_truth"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5), st.integers(0, 4), st.integers(0, 3))
def test_resume_draws_the_same(seed: int, before: int, n: int):
    one, two = (SampleBuffer(capacity=6, seed=seed) for _ in range(2))
    for step in range(before):
        one.push([entry(f"s{step}-{i}", version=step, priority=1.0 + i) for i in range(2)])
        one.draw(n, step=step, version=step)
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert two.entries == one.entries
    for step in range(before, before + 3):
        assert one.draw(n, step=step, version=before) == two.draw(n, step=step, version=before)
    assert one.state_dict() == two.state_dict()


def test_loading_is_strict():
    buffer = filled()
    good = buffer.state_dict()
    bad = [
        good | {"extra": 1},
        {k: v for k, v in good.items() if k != "entries"},
        good | {"capacity": 11},
        good | {"fields": good["fields"][::-1]},
        good | {"rollout": good["rollout"][:-1]},
        good | {"entries": [good["entries"][0][:-1]]},
        good | {"entries": good["entries"] * 2},
    ]
    for state in bad:
        with pytest.raises(CheckpointError, match="selective sample buffer"):
            buffer.load_state_dict(state)
    assert buffer.state_dict() == good


@pytest.mark.parametrize("bad", [{"capacity": 0}, {"max_age": -1}, {"max_uses": 0}])
def test_arguments_are_checked(bad: dict):
    with pytest.raises(ValueError, match="selective sample buffer"):
        SampleBuffer(**({"capacity": 2, "seed": 0} | bad))
