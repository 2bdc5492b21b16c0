"""sampling.uniform: whole epochs, a stream position as the only state, strict loading."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vlmrl.sampling.uniform  # noqa: F401 (registers)
from vlmrl import rng
from vlmrl.errors import CheckpointError
from vlmrl.protocols import sampler
from vlmrl.sampling.ledger import Ledger

make = sampler.bind("uniform", {})
LEDGER = Ledger()


def test_order_is_the_permutation_of_seed_and_epoch() -> None:
    plan = make(["a", "b", "c", "d"], 5).plan(LEDGER, prompts=8, rollouts=3)
    expected = [("abcd"[i], epoch) for epoch in (0, 1) for i in rng.permutation(4, 5, "sampler", epoch)]
    assert [(p.sample_id, p.epoch) for p in plan] == expected
    assert {p.num_generations for p in plan} == {3}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(1, 7), max_size=8), st.integers(0, 5))
def test_every_epoch_holds_each_sample_once_whatever_the_batches(n: int, batches: list[int], seed: int) -> None:
    ids = [f"s{i}" for i in range(n)]
    one = make(ids, seed)
    stream = [p for size in batches for p in one.plan(LEDGER, prompts=size, rollouts=1)]
    assert stream == make(ids, seed).plan(LEDGER, prompts=sum(batches), rollouts=1)
    for epoch in range(sum(batches) // n):
        assert sorted(p.sample_id for p in stream if p.epoch == epoch) == sorted(ids)
    assert [p.epoch for p in stream] == [i // n for i in range(len(stream))]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(0, 30), st.integers(1, 12))
def test_resume_continues_the_stream(n: int, before: int, after: int) -> None:
    ids = [f"s{i}" for i in range(n)]
    one, two = make(ids, 1), make(ids, 1)
    one.plan(LEDGER, prompts=before, rollouts=1)
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert one.plan(LEDGER, prompts=after, rollouts=1) == two.plan(LEDGER, prompts=after, rollouts=1)


def test_seeds_and_epochs_shuffle_differently() -> None:
    ids = [str(i) for i in range(50)]
    plan = make(ids, 0).plan(LEDGER, prompts=100, rollouts=1)
    first, second = [p.sample_id for p in plan[:50]], [p.sample_id for p in plan[50:]]
    other = [p.sample_id for p in make(ids, 1).plan(LEDGER, prompts=50, rollouts=1)]
    assert len({tuple(first), tuple(second), tuple(other), tuple(ids)}) == 4


def test_loading_is_strict() -> None:
    one = make(["a", "b"], 0)
    good = one.state_dict()
    bad = [
        ({"position": 1}, "keys"),
        ({**good, "epoch": 0}, "keys"),
        ({**good, "position": -1}, "position -1"),
        ({**good, "position": 1.0}, r"position 1\.0"),
        ({**good, "position": True}, "position True"),
        (make(["b", "a"], 0).state_dict(), "not those that this run started with"),
        (make(["ab"], 0).state_dict(), "not those that this run started with"),
    ]
    for state, message in bad:
        with pytest.raises(CheckpointError, match=message):
            one.load_state_dict(state)
    assert one.state_dict() == good


@pytest.mark.parametrize("ids", [[], ["a", "b", "a"]])
def test_samples_must_be_there_and_unique(ids: list[str]) -> None:
    with pytest.raises(ValueError, match="unique ids"):
        make(ids, 0)
