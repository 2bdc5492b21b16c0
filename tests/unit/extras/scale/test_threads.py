"""Threads of an update in the machine's memory."""

from __future__ import annotations

import pytest
import torch

from vlmrl.config.section import OptimSection
from vlmrl.extras.scale import threads
from vlmrl.train.adamw import make_optimizer


@pytest.mark.parametrize(("given", "ranks", "expected"), [(0, "2", 4), (0, "16", 1), (3, "2", 3)])
def test_an_update_has_the_ranks_share_of_the_cores(given: int, ranks: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun says one thread for each rank; what the recipe says comes first. Before and after the update it is as it was."""
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    seen: list[int] = []
    weight = torch.nn.Parameter(torch.zeros(4))

    class Adam(torch.optim.AdamW):
        def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            seen.append(torch.get_num_threads())
            super().step(closure)

    optimizer = Adam([weight])
    threads.spread(optimizer, given)
    before = torch.get_num_threads()
    for _ in range(2):
        weight.grad = torch.ones(4)
        optimizer.step()
    assert seen == [expected] * 2
    assert torch.get_num_threads() == before


def test_the_bits_of_an_update_do_not_depend_on_its_threads() -> None:
    def updated(number: int) -> torch.Tensor:
        draws = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(300_001, generator=draws))
        optimizer, _ = make_optimizer([("w", weight)], OptimSection.model_validate({"lr": 1e-2, "weight_decay": 0.1}))
        threads.spread(optimizer, number)
        for _ in range(3):
            weight.grad = torch.randn(300_001, generator=draws)
            optimizer.step()
        return weight.detach()

    assert torch.equal(updated(1), updated(2))


def test_a_fused_update_is_the_update_to_rounding() -> None:
    def updated(fused: bool) -> torch.Tensor:
        draws = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(1000, 3, generator=draws))
        optimizer, _ = make_optimizer([("w", weight)], OptimSection.model_validate({"lr": 1e-2, "weight_decay": 0.1}), fused=fused)
        assert optimizer.param_groups[0]["fused"] is (fused or None)
        for _ in range(3):
            weight.grad = torch.randn(1000, 3, generator=draws)
            optimizer.step()
        return weight.detach()

    assert (updated(True) - updated(False)).abs().max() < 1e-6
