"""Bytes in the machine's memory, by hand."""

from __future__ import annotations

from vlmrl.extras.plan import host
from vlmrl.extras.scale import arena


def test_page_locked_memory_comes_in_powers_of_two() -> None:
    assert host.page_locked([4, 12, 4096, 4100, 0]) == 4 + 16 + 4096 + 8192


def test_activations_come_in_blocks() -> None:
    assert host.BLOCK == arena.BLOCK
    assert [host.blocks(n) for n in (0, 1, host.BLOCK, host.BLOCK + 1)] == [0, host.BLOCK, host.BLOCK, 2 * host.BLOCK]
