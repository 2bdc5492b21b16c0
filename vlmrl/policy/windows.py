"""The vision tower's attention where there is no flash attention: one call for all windows of a length.

On CUDA in 16 bits `policy.kernels` takes all windows at once.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from vlmrl.policy.pack import to_device

TOWER = "vlmrl_flash_varlen"
"""Name of `kernels.tower_attention` among transformers' attention functions. A name with `flash` in it gets the boundaries of the windows;
for others the tower calls once per window."""
WINDOWS = "vlmrl_flash_windows"
"""Name of `window_attention`."""


def one_type(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bring the three to the autocast type where autocast is on, else to that of `value`, which no rotary embedding has touched.

    Returns:
        (query, key, value), shapes unchanged.
    """
    kind = value.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype
    return query.to(dtype), key.to(dtype), value.to(dtype)


def ordered(attend: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
    """Call `attend(query, key, value)`, on CUDA with a backward that keeps its order where the run is deterministic (`policy.ordered`)."""
    if query.device.type == "cpu":
        return attend(query, key, value)
    from vlmrl.policy import ordered  # of CUDA

    return ordered.ordered(attend, query, key, value)


def window_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as `kernels.tower_attention`, without flash attention: one call for all windows of a length, each a row of its batch.

    On the CPU the rows of a batch do not meet, so the numbers are those of a call for each window, to the last bit.

    Returns:
        ([1, N, H, D], None), for [1, H, N, D] each.

    Raises:
        RuntimeError: a mask or dropout, which a tower of the supported families does not have.
    """
    without_mask(attention_mask, dropout)
    lengths = tuple(cu_seq_lens_q.diff().tolist())
    heads, size = query.shape[1], query.shape[3]
    columns = columns_by_length(lengths, query.device)
    tokens_NHD = tuple(x[0].transpose(0, 1) for x in (query, key, value))
    parts: list[Tensor] = []
    for length, of_length in columns.items():  # a batch for each length: no mask, no padding
        own = tokens_NHD if len(columns) == 1 else tuple(x[of_length] for x in tokens_NHD)
        q, k, v = (x.reshape(-1, length, heads, size).transpose(1, 2) for x in own)
        out = ordered(functools.partial(torch.nn.functional.scaled_dot_product_attention, scale=scaling), q, k, v)
        parts.append(out.transpose(1, 2).reshape(-1, heads, size))
    if len(columns) == 1:
        return parts[0][None], None
    # back from the order of lengths to that of columns
    return torch.cat(parts)[torch.cat(list(columns.values())).argsort()][None], None


@functools.lru_cache(maxsize=8)
def columns_by_length(lengths: tuple[int, ...], device: torch.device) -> dict[int, Tensor]:
    """Sort the columns of windows by the length of their window, each in its order; windows without a column are left out.

    Returns:
        Length -> columns, int64.
    """
    out: dict[int, list[int]] = {}
    at = 0
    for length in lengths:
        if length:
            out.setdefault(length, []).extend(range(at, at + length))
        at += length
    with torch.inference_mode(False):  # kept from one call to the next, and tensors of that mode cannot be saved for a backward
        return {length: to_device(torch.tensor(columns), device) for length, columns in out.items()}


def without_mask(attention_mask: Tensor | None, dropout: float) -> None:
    """Refuse what a tower of the supported families does not have.

    Raises:
        RuntimeError: a mask, or dropout.
    """
    if attention_mask is not None or dropout:
        raise RuntimeError("the vision tower's attention takes no mask and no dropout")
