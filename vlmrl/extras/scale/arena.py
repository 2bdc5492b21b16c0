"""Host memory for copies from a device, in few large blocks.

torch's page-locked memory comes in powers of two, so a tensor may take up to twice its bytes, and blocks of one size do not serve tensors
of another. Here tensors lie behind each other in blocks that are a power of two themselves.
"""

from __future__ import annotations

import torch

BLOCK = 2**28
"""Bytes of a block; a larger tensor has one of its own."""
ALIGNED = 64
"""Bytes that the addresses of tensors are multiples of."""


class Arena:
    """Blocks that are filled one after the other and emptied all at once; they are kept for the next time."""

    def __init__(self, *, pinned: bool):
        self._pinned = pinned
        self._blocks: list[torch.Tensor] = []
        self._block, self._at, self._held = 0, 0, 0

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(len(block) for block in self._blocks)

    @property
    def taken(self) -> int:
        """Tensors that have not been given back."""
        return self._held

    @property
    def pinned(self) -> bool:
        """Whether all blocks are page-locked."""
        return all(block.is_pinned() for block in self._blocks)

    def take(self, numbers: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for so many numbers, until `give_back` has been called as often as this."""
        size = -(-numbers * dtype.itemsize // ALIGNED) * ALIGNED
        while self._block < len(self._blocks) and self._at + size > len(self._blocks[self._block]):
            self._block, self._at = self._block + 1, 0
        if self._block == len(self._blocks):
            room = max(BLOCK, 1 << (size - 1).bit_length())
            self._blocks.append(torch.empty(room, dtype=torch.uint8, pin_memory=self._pinned))
        start, self._at, self._held = self._at, self._at + size, self._held + 1
        return self._blocks[self._block][start : start + numbers * dtype.itemsize].view(dtype)

    def give_back(self) -> None:
        """One of the tensors is not needed any more. After the last one all of the memory is free."""
        self._held -= 1
        if not self._held:
            self._block, self._at = 0, 0
