"""sampling.replay: which past rows join a group, what is remembered, and that order and journals do not matter."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.support.builders import group, sample
from vlmrl.errors import CheckpointError
from vlmrl.protocols import RememberingStrategy, strategy
from vlmrl.types import Guidance, MediaHandle, ScoredGroup, Scores
from vlmrl.zoo.sampling.replay import replay, sampled_rows


def scored(name: str, rewards, *, version: int, texts=None) -> ScoredGroup:
    mine = group(texts or [f"{name}{version}-{k}" for k in range(len(rewards))], sample(id=name))
    rows = tuple(dataclasses.replace(r, policy_version=version) for r in mine.rollouts)
    scores = Scores(columns=("acc", "fmt"), weights=(1.0, 0.5), rewards_GK=tuple((r, None) for r in rewards), reasons={"fmt/x": 1})
    return ScoredGroup(group=dataclasses.replace(mine, rollouts=rows), scores=scores)


def complete(method, mine: ScoredGroup):
    return method.complete(mine.group, lambda g: [], lambda t: [])


def test_replay():
    method = strategy.bind("replay", {"rows": 2})()
    assert isinstance(method, RememberingStrategy)
    assert method.sampled(8) == 8
    past = scored("a", [1.0, 0.0, None, 1.0], version=3)
    method.observe([past], [0.5], version=4)
    now = scored("a", [0.0, 0.0], version=5)
    out = complete(method, now)
    assert out.rollouts[:2] == now.group.rollouts
    added = out.rollouts[2:]
    assert [r.text for r in added] == ["a3-0", "a3-3"]
    assert [(r.k, r.provenance, r.policy_version, r.on_policy, r.old_from_sampler) for r in added] == [
        (2, "replay", 3, False, True),
        (3, "replay", 3, False, True),
    ]
    # ids and log-probs are those of the sampler then
    assert [(r.ids, r.logprobs) for r in added] == [(r.ids, r.logprobs) for r in (past.group.rollouts[0], past.group.rollouts[3])]


def test_replay_prefers_reward_then_likelihood():
    method = replay(rows=1)
    past = scored("a", [1.0, 1.0, 0.6], version=0)
    rows = past.group.rollouts
    likely = dataclasses.replace(rows[1], logprobs=(-0.1,) * len(rows[1].ids))
    past = dataclasses.replace(past, group=dataclasses.replace(past.group, rollouts=(rows[0], likely, rows[2])))
    method.observe([past], [1.0], version=1)
    assert complete(method, scored("a", [0.0], version=1)).rollouts[1].text == "a0-1"


def test_replay_is_for_the_same_sample_fresh_and_successful():
    method = replay(max_age=2)
    method.observe([scored("a", [1.0, 0.0], version=3), scored("b", [0.4, 0.1], version=3)], [1.0, 1.0], version=4)
    for name, version, n in (("a", 5, 2), ("a", 6, 1), ("b", 5, 1), ("c", 5, 1)):
        now = scored(name, [0.0], version=version)
        assert len(complete(method, now).rollouts) == n
    method.observe([scored("a", [1.0, 0.5], version=4)], [1.0], version=5)
    assert complete(method, scored("a", [0.0], version=5)).rollouts[1].text == "a4-0"


def test_replay_is_for_the_row_that_it_was_sampled_for():
    """A buffer outlives a restart: rows that were edited in between do not meet answers to the former question or gold."""
    method = replay()
    method.observe([scored("a", [1.0, 0.0], version=3)], [1.0], version=4)
    now = scored("a", [0.0], version=4)
    assert len(complete(method, now).rollouts) == 2
    for edited in (
        dataclasses.replace(now.group.prompt, sample=sample("1.0 to 2.0", {"time": [1.0, 2.0]}, id="a")),
        dataclasses.replace(now.group.prompt, ids=(2,)),
        dataclasses.replace(now.group.prompt, media=(MediaHandle(kind="image", key="k", grid_thw=(1, 2, 2), tokens=1),)),
    ):
        changed = dataclasses.replace(now, group=dataclasses.replace(now.group, prompt=edited))
        assert len(complete(method, changed).rollouts) == 1


def test_only_sampled_rows_of_groups_with_signal_are_remembered():
    method = replay()
    quiet = scored("q", [1.0, 1.0], version=0)
    mixed = scored("m", [1.0, 0.0, 1.0], version=0)
    rows = mixed.group.rollouts
    helped = dataclasses.replace(rows[0], provenance="guided", guidance=Guidance(question="q", tier=1))
    old = dataclasses.replace(rows[2], provenance="replay")
    mixed = dataclasses.replace(mixed, group=dataclasses.replace(mixed.group, rollouts=(helped, rows[1], old)))
    only = dataclasses.replace(mixed, group=dataclasses.replace(mixed.group, rollouts=(helped, helped, helped)))
    method.observe([quiet, mixed, only], [0.0, 0.7, 1.0], version=1)
    (entry,) = method.buffer.entries
    assert (entry.sample_id, entry.rollouts, entry.priority) == ("m", (rows[1],), 0.7)
    assert entry.scores.rewards_GK == ((0.0, None),)
    assert sampled_rows(only, priority=1.0) is None


def test_an_entry_leaves_after_its_uses_and_completing_changes_nothing():
    method = replay(max_uses=2)
    method.observe([scored("a", [1.0, 0.0], version=0)], [1.0], version=1)
    for version in (1, 2):
        before = method.state_dict()
        now = scored("a", [0.0], version=version)
        grown = complete(method, now)
        assert len(grown.rollouts) == 2
        assert complete(method, now) == grown
        used = dataclasses.replace(now, group=grown, scores=dataclasses.replace(now.scores, rewards_GK=((0.0, None), (1.0, None))))
        assert method.state_dict() == before
        method.observe([used], [0.0], version=version + 1)
    assert len(method.buffer) == 0
    assert len(complete(method, scored("a", [0.0], version=3)).rollouts) == 1


def test_state_comes_back_and_is_strict():
    one, two = replay(), replay()
    one.observe([scored("a", [1.0, 0.0], version=0), scored("b", [1.0, 0.0], version=0)], [1.0, 0.5], version=1)
    state = json.loads(json.dumps(one.state_dict()))
    two.load_state_dict(state)
    assert two.state_dict() == one.state_dict()
    now = scored("b", [0.0], version=2)
    assert complete(two, now) == complete(one, now)
    for bad in ({}, state | {"x": 1}, {"buffer": state["buffer"] | {"capacity": 3}}):
        with pytest.raises(CheckpointError):
            two.load_state_dict(bad)
    assert two.state_dict() == one.state_dict()


def test_a_guided_row_survives_the_buffers_state():
    from vlmrl.zoo.sampling.buffer import Entry, SampleBuffer

    base = scored("a", [1.0], version=0)
    helped = dataclasses.replace(base.group.rollouts[0], provenance="guided", guidance=Guidance(question="q", tier=2, train="plain"))
    buffer, back = SampleBuffer(capacity=2, seed=0), SampleBuffer(capacity=2, seed=0)
    buffer.push([Entry(sample_id="a", inputs="i", version=0, priority=1.0, rollouts=(helped,), scores=base.scores)])
    back.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    assert back.entries == buffer.entries


@pytest.mark.parametrize("bad", [{"rows": 0}, {"capacity": 0}, {"max_age": -1}, {"max_uses": 0}])
def test_arguments_are_checked(bad):
    with pytest.raises(ValueError, match=r"must be at least 1|needs capacity"):
        replay(**bad)
