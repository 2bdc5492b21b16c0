"""sampling.info: what samplers see of a sample."""

from __future__ import annotations

import pytest

from tests.support.builders import sample
from tests.support.samplers import infos
from vlmrl.sampling.info import describe, group_by


def test_describe_flattens_scalars():
    of = sample(id="x", meta={"trajectory": {"id": "t1", "length": 4}, "difficulty": 0.5, "events": [1, 2], "nested": {"a": {"b": True}}})
    info = describe(of)
    assert (info.id, info.task) == ("x", "temporal_grounding")
    assert info.tags == {
        "answer_type": "time_span",
        "trajectory.id": "t1",
        "trajectory.length": "4",
        "difficulty": "0.5",
        "nested.a.b": "True",
    }


def test_group_by():
    rows = infos(4, task=["b", "a"], level=["1", "2", "2", "1"])
    assert group_by(rows, "task", "x") == {"a": ["s1", "s3"], "b": ["s0", "s2"]}
    assert list(group_by(rows, "task", "x")) == ["a", "b"]
    assert group_by(rows, "level", "x") == {"1": ["s0", "s3"], "2": ["s1", "s2"]}
    with pytest.raises(ValueError, match=r"sampler 'x': sample 's0' has no tag 'size' \(it has: level\)"):
        group_by(rows, "size", "x")
