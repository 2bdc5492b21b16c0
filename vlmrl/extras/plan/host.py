"""Bytes that tensors take in the machine's memory where a GPU copies to and from it by itself (page-locked), more than they have."""

from __future__ import annotations

from collections.abc import Iterable

BLOCK = 2**28
"""Bytes of the blocks in which activations and copies for checkpoints lie (`scale.arena`)."""


def blocks(nbytes: int) -> int:
    """Bytes of whole blocks."""
    return -(-nbytes // BLOCK) * BLOCK


def page_locked(sizes: Iterable[int]) -> int:
    """Bytes that tensors of so many bytes take in torch's own page-locked memory, where each has a power of two to itself."""
    return sum(1 << (size - 1).bit_length() for size in sizes if size)
