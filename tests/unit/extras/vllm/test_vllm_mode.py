"""vLLM in the trainer's process: its own steps run outside of torch's deterministic mode, which comes back behind them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from vlmrl.extras.vllm.engine import Core


@pytest.fixture
def deterministic() -> Any:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def mode() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def test_a_step_leaves_the_mode_and_brings_it_back(deterministic: None) -> None:
    seen: list[tuple[bool, bool]] = []

    def step() -> list[Any]:
        seen.append(mode())
        if len(seen) > 1:
            raise RuntimeError("the engine died")
        return []

    core = cast(Any, SimpleNamespace(engine=SimpleNamespace(step=step)))
    assert Core.step(core) == []
    with pytest.raises(RuntimeError, match="died"):
        Core.step(core)
    assert seen == [(False, False)] * 2
    assert mode() == (True, True)
