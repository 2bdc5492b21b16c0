"""The backend `flex` of the attention over packed rows: torch's FlexAttention under a block mask that is made from the layout alone."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlmrl.policy.pack import layout_of, to_device
from vlmrl.policy.runs import RowLayout

BLOCK = 128
COMPILED = {"cuda"}
"""Devices on which it is compiled; without that it holds all N x N scores."""


def flex(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scale: float) -> Tensor:
    """Attend over a packed row, padded to whole blocks on the way. query [1, Hq, N, D], key and value [1, Hkv, N, D].

    Returns:
        [1, Hq, N, D]
    """
    from torch.nn.attention.flex_attention import flex_attention

    n = layout.tokens
    pad = -n % BLOCK
    mask = block_mask(layout, query.device)
    q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (query, key, value))
    run: Any = _compiled() if query.device.type in COMPILED else flex_attention
    return run(q, k, v, block_mask=mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1])[:, :, :n]


def warm_up(config: Any, *, compute: torch.dtype, device: torch.device) -> None:
    """Compile FlexAttention for a decoder (its `text_config`) before anybody waits for a pass: without a gradient, and with one, on two
    blocks. That holds for rows of any length."""
    heads, keys = config.num_attention_heads, config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    layout = layout_of([(BLOCK, (BLOCK,))])
    for wanted in (False, True):
        q, k, v = (torch.zeros(1, h, layout.tokens, size, dtype=compute, device=device, requires_grad=wanted) for h in (heads, keys, keys))
        with torch.set_grad_enabled(wanted):
            out = flex(q, k, v, layout, size**-0.5)
        if wanted:
            out.sum().backward()


@functools.lru_cache(maxsize=1)
def _compiled() -> Any:
    """Compile it for lengths of any size: compiled for one size each, the ninth would run without being compiled (torch's limit)."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)  # pyright: ignore[reportUnknownMemberType]


@functools.lru_cache(maxsize=8)
def block_mask(layout: RowLayout, device: torch.device) -> Any:
    """Make the block mask of a layout; all layers of a forward and its recomputation share it. Padding is a run of its own.

    The same as torch's `create_block_mask` of `allow`, which asks about all N x N pairs to find out which blocks have any.
    """
    from torch.nn.attention.flex_attention import BlockMask

    pad = -layout.tokens % BLOCK
    ends = to_device(F.pad(layout.ends, (0, pad), value=layout.tokens + pad), device)

    def allow(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < ends[k])

    n = layout.tokens + pad
    pairs = _block_pairs(layout, n)
    full = pairs == BLOCK**2
    of_kind = [to_device(part[None, None], device) for kind in ((pairs > 0) & ~full, full) for part in _ordered(kind)]
    return BlockMask.from_kv_blocks(*of_kind, BLOCK_SIZE=BLOCK, mask_mod=allow, seq_lengths=(n, n))


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """bool [rows, columns] -> (how many of each row, their columns in front of the others), int32."""
    return blocks.sum(1).to(torch.int32), blocks.to(torch.int32).argsort(dim=1, descending=True, stable=True).to(torch.int32)


def _block_pairs(layout: RowLayout, n: int) -> Tensor:
    """Count the pairs that may meet in each block of BLOCK queries and keys, int64 [blocks of queries, of keys], without looking at a pair.

    A key is seen by one range of queries, from itself to the end of its subtree. The range begins in one block and ends in one; of the
    blocks in between it has every query.
    """
    ends = F.pad(layout.ends, (0, n - layout.tokens), value=n)
    size = n // BLOCK
    at = torch.arange(n)
    ending, whole = torch.zeros(2, (size + 1) * size, dtype=torch.int64)
    # a key's queries in a block: those below its end less those below itself. Of a block, `edge % BLOCK` queries lie below an edge
    # inside it, and all below one that lies behind
    for edge, sign in ((at, -1), (ends, 1)):
        where = edge // BLOCK * size + at // BLOCK
        ending.index_add_(0, where, sign * (edge % BLOCK))
        whole.index_add_(0, where, torch.full_like(where, sign))
    of_block = whole.view(size + 1, size)
    behind = of_block.flip(0).cumsum(0).flip(0) - of_block
    return (ending.view(size + 1, size) + BLOCK * behind)[:size]
