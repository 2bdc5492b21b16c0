"""What parts remember: kept by name, saved whole (tensors too), restored at once, and never lost in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from vlmrl.errors import CheckpointError
from vlmrl.train.memory import Memories, MethodMemory


class Part:
    """A part with numbers and a tensor."""

    def __init__(self) -> None:
        self.count, self.mean = 0, torch.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.mean = state["count"], state["mean"]


def test_numbers_and_tensors_come_back() -> None:
    before = Memories()
    part, cell = before.keep("part", Part()), before.keep("cell", MethodMemory())
    part.count, part.mean, cell.value = 3, torch.tensor([1.5, 2.0]), {"a": [0.1]}
    state = json.loads(json.dumps(before.state_dict()))
    assert state == {"cell": {"a": [0.1]}, "part": {"count": 3}}
    assert list(before.tensors()) == ["part/mean"]
    after = Memories(state, before.tensors())
    assert after.keep("cell", MethodMemory()).value == {"a": [0.1]}
    with pytest.raises(CheckpointError, match="part"):
        after.complete()
    found = after.keep("part", Part())
    after.complete()
    assert (found.count, found.mean.tolist()) == (3, [1.5, 2.0])


def test_names_are_unique() -> None:
    memories = Memories()
    memories.keep("part", Part())
    for name in ("part", "a/b"):
        with pytest.raises(ValueError, match=name):
            memories.keep(name, Part())


def test_what_is_no_json_is_refused_with_its_part() -> None:
    memories = Memories()
    memories.keep("cell", MethodMemory()).value = {"deep": {"tensor": torch.ones(1)}}
    with pytest.raises(TypeError, match="memory 'cell'"):
        memories.state_dict()
