"""Memory of copies from a device: behind each other, free when all is given back, and little more than what is asked for."""

from __future__ import annotations

import gc

import pytest
import torch

from vlmrl.extras.scale import arena, offload
from vlmrl.extras.scale.arena import ALIGNED, Arena
from vlmrl.extras.scale.copies import Copies


def rounded(tensors: list[torch.Tensor]) -> int:
    """Bytes of torch's page-locked memory for them."""
    return sum(1 << (t.numel() * t.element_size() - 1).bit_length() for t in tensors)


def test_tensors_lie_behind_each_other_and_the_memory_serves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "BLOCK", 1024)
    memory = Arena(pinned=False)
    for _ in range(3):
        sizes = [(100, torch.float32), (33, torch.bfloat16), (700, torch.uint8), (300, torch.float32), (1, torch.float64)]
        parts = [memory.take(*size) for size in sizes]
        assert [(len(part), part.dtype) for part in parts] == sizes
        assert all(part.data_ptr() % ALIGNED == 0 for part in parts)
        for number, part in enumerate(parts):
            part.fill_(number)
        assert all(bool((part == number).all()) for number, part in enumerate(parts)), "no two overlap"
        assert memory.nbytes == 1024 + 1024 + 2048, "400 and 66, 700, and 1,200 in one of its own"
        for _ in parts:
            memory.give_back()


def test_activations_take_little_more_than_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of many steps with rows of other lengths, too; one that is still held keeps its place."""
    monkeypatch.setattr(arena, "BLOCK", 2**16)
    monkeypatch.setattr(offload, "_ARENAS", {})
    peak, tensors = 0, list[torch.Tensor]()
    for step in range(5):
        tensors = [torch.full((520 + 3 * step + k, 5), float(k)) for k in range(40)]
        kept = [offload.take(tensor, set()) for tensor in tensors]
        peak = max(peak, sum(tensor.numel() * 4 for tensor in tensors))
        del kept[::2]
        assert all(torch.equal(offload.give_back(away), tensor) for away, tensor in zip(kept, tensors[1::2], strict=True))
        del kept
        gc.collect()
    (memory,) = offload._ARENAS.values()
    assert memory.nbytes <= 1.25 * peak
    assert rounded(tensors) > 1.45 * peak


def test_copies_of_a_checkpoint_share_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "BLOCK", 2**16)
    tensors = {str(k): torch.full((520 + k, 5), float(k)) for k in range(40)} | {"step": torch.tensor(3.0), "empty": torch.zeros(0, 4)}
    copies = Copies()
    first = copies.take(tensors)
    held = {name: value.data_ptr() for name, value in first.items()}
    for value in tensors.values():
        value.add_(1)
    again = copies.take(tensors)
    assert all(torch.equal(again[name], value) for name, value in tensors.items())
    assert {name: value.data_ptr() for name, value in again.items()} == held
    (memory,) = copies._arenas.values()
    assert memory.nbytes <= 1.25 * sum(value.numel() * 4 for value in tensors.values())
