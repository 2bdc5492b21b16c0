"""The backend `flex` of the attention over packed rows: torch's FlexAttention under a block mask that is made from the layout alone."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlmrl.policy.pack import PrefixLayout

BLOCK = 128
COMPILED = {"cuda"}
"""Devices on which it is compiled; without that it holds all N x N scores."""


def flex(query: Tensor, key: Tensor, value: Tensor, layout: PrefixLayout, scale: float) -> Tensor:
    """[1, Hq, N, D] and twice [1, Hkv, N, D] -> [1, Hq, N, D], padded to whole blocks on the way."""
    from torch.nn.attention.flex_attention import flex_attention

    n = layout.tokens
    pad = -n % BLOCK
    mask = block_mask(layout, query.device)
    q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (query, key, value))
    run: Any = _compiled() if query.device.type in COMPILED else flex_attention
    return run(q, k, v, block_mask=mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1])[:, :, :n]


@functools.lru_cache(maxsize=1)
def _compiled() -> Any:
    """For lengths of any size: compiled for one size each, the ninth would run without being compiled (torch's limit)."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)  # pyright: ignore[reportUnknownMemberType]


@functools.lru_cache(maxsize=8)
def block_mask(layout: PrefixLayout, device: torch.device) -> Any:
    """Block mask of a layout; all layers of a forward and its recomputation share it. Padding is a group of its own.

    The same as torch's `create_block_mask` of `allow`, which asks about all N x N pairs to find out which blocks have any.
    """
    from torch.nn.attention.flex_attention import BlockMask

    pad = -layout.tokens % BLOCK
    group, answer = (F.pad(x, (0, pad), value=-1).to(device) for x in layout.owners)

    def allow(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (group[q] == group[k]) & ((answer[k] <= 0) | (answer[k] == answer[q]))

    n = layout.tokens + pad
    pairs = _block_pairs(layout, n)
    full = pairs == BLOCK**2
    of_kind = [part[None, None] for kind in ((pairs > 0) & ~full, full) for part in _ordered(kind)]
    return BlockMask.from_kv_blocks(*of_kind, BLOCK_SIZE=BLOCK, mask_mod=allow, seq_lengths=(n, n)).to(str(device))


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """bool [rows, columns] -> (how many of each row, their columns in front of the others), int32."""
    return blocks.sum(1).to(torch.int32), blocks.to(torch.int32).argsort(dim=1, descending=True, stable=True).to(torch.int32)


def _block_pairs(layout: PrefixLayout, n: int) -> Tensor:
    """Pairs that may meet in each block of BLOCK queries and keys, int64 [blocks, blocks], without looking at a pair.

    A query sees at most two ranges of keys: up to itself in its prompt or its answer, and for an answer its whole prompt. A range ends
    in one block; of the blocks before, it has every key.
    """
    prompt, own = torch.zeros(2, n, dtype=torch.int64), torch.zeros(2, n, dtype=torch.int64)
    own[0, layout.tokens :] = layout.tokens
    for block in layout.blocks:
        answers = slice(block.start + block.prefix, block.end)
        own[0, block.start : answers.start] = block.start
        prompt[0, answers], prompt[1, answers] = block.start, block.start + block.prefix
        for at, length in zip(block.suffix_starts, block.suffixes, strict=True):
            own[0, at : at + length] = at
    own[1] = torch.arange(1, n + 1)
    size = n // BLOCK
    row = torch.arange(n) // BLOCK * (size + 1)
    ending, whole = torch.zeros(2, size * (size + 1), dtype=torch.int64)
    for ends, sign in ((prompt[0], -1), (prompt[1], 1), (own[0], -1), (own[1], 1)):
        where = row + ends // BLOCK
        ending.index_add_(0, where, sign * (ends % BLOCK))
        whole.index_add_(0, where, torch.full_like(where, sign))
    of_row = whole.view(size, size + 1)
    behind = of_row.flip(1).cumsum(1).flip(1) - of_row
    return (ending.view(size, size + 1) + BLOCK * behind)[:, :size]
