"""The CUDA kernels of packed rows written out for the CPU: they check their arguments as the real ones do, and have a backward.

What is checked is what `mha_varlen_fwd` and `mha_varlen_bwd` of flash-attn 2 check before they launch, and what torch's FlexAttention
says of its inputs. A kernel that takes whatever it is given would let a mix of types through that stops the first step on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vlmrl.policy import attention, load

MOST_HEAD_DIM = 256
EMULATED = ("flash", "flex")


def flash_varlen(q: Tensor, k: Tensor, v: Tensor, **plan: Any) -> Tensor:
    """`flash_attn_varlen_func`: [total, H, D], causal aligned at the bottom right, computed in float32 and rounded once."""
    assert q.dtype in (torch.bfloat16, torch.float16), f"FlashAttention only support fp16 and bf16 data type, not {q.dtype}"
    assert k.dtype == q.dtype, "query and key must have the same dtype"
    assert v.dtype == q.dtype, "query and value must have the same dtype"
    return varlen(q, k, v, **plan)


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    deterministic: bool,
) -> Tensor:
    """The same kernel for any type of number, so that a plan can be compared exactly."""
    assert causal
    assert deterministic == torch.are_deterministic_algorithms_enabled(), "the backward adds up in any order unless it is told not to"
    for name, x, heads in (("q", q, q.shape[1]), ("k", k, k.shape[1]), ("v", v, k.shape[1])):
        assert x.dim() == 3, f"{name} must have shape (total, heads, head_size), not {tuple(x.shape)}"
        assert x.shape[1:] == (heads, q.shape[2]), f"{name} must have shape (total, {heads}, {q.shape[2]}), not {tuple(x.shape)}"
        assert x.stride(-1) == 1, "Input tensor must have contiguous last dimension"
    assert k.shape[0] == v.shape[0], "k and v must have one token count"
    assert q.shape[2] <= MOST_HEAD_DIM, "FlashAttention forward only supports head dimension at most 256"
    assert q.shape[2] % 8 == 0, "head_size should be a multiple of 8"
    assert q.shape[1] % k.shape[1] == 0, "Number of heads in key/value must divide number of heads in query"
    for name, ends, x, longest in (("q", cu_seqlens_q, q, max_seqlen_q), ("k", cu_seqlens_k, k, max_seqlen_k)):
        assert ends.dtype == torch.int32, f"cu_seqlens_{name} must have dtype int32"
        assert ends.is_contiguous(), f"cu_seqlens_{name} must be contiguous"
        assert ends.device == q.device, f"cu_seqlens_{name} must be on the device of q"
        assert ends.shape == cu_seqlens_q.shape, f"cu_seqlens_{name} must have shape (batch_size + 1)"
        assert len(ends) > 1, "batch size must be positive"
        lengths = ends.diff()
        assert int(ends[0]) == 0, "the first sequence starts at 0"
        assert int(ends[-1]) == x.shape[0], "the last sequence ends with the tensor"
        assert bool((lengths >= 0).all()), "ends rise"
        assert type(longest) is int, "max_seqlen is a plain int"
        assert int(lengths.max()) <= longest, f"max_seqlen_{name} is below the longest sequence"
    wide = torch.promote_types(q.dtype, torch.float32)
    outs: list[Tensor] = []
    for i in range(len(cu_seqlens_q) - 1):
        qs = q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]].to(wide)
        ks, vs = (x[cu_seqlens_k[i] : cu_seqlens_k[i + 1]].to(wide).repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", qs, ks) * softmax_scale
        hidden = torch.arange(len(ks))[None] > torch.arange(len(qs))[:, None] + len(ks) - len(qs)
        outs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), vs))
    return torch.cat(outs).to(q.dtype)


def flex(query: Tensor, key: Tensor, value: Tensor, *, block_mask: Any, scale: float, enable_gqa: bool) -> Tensor:
    """`torch.nn.attention.flex_attention.flex_attention`, [1, H, N, D], by its mask function, computed in float32 and rounded once."""
    assert query.dtype == key.dtype == value.dtype, f"one type, not {query.dtype}, {key.dtype}, {value.dtype}"
    assert query.shape[0] == key.shape[0] == value.shape[0] == 1
    assert key.shape == value.shape
    assert query.shape[2:] == key.shape[2:]
    assert query.shape[1] % key.shape[1] == 0, "Expect number of query heads to be a multiple of kv heads for GQA"
    assert enable_gqa or query.shape[1] == key.shape[1], "Try setting enable_gqa=True for GQA."
    n = query.shape[2]
    assert tuple(block_mask.shape[-2:]) == (n, n), f"block_mask was created for {tuple(block_mask.shape)} but the row has {n} tokens"
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (query, key, value))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    at = torch.arange(n)
    allowed = block_mask.mask_mod(torch.tensor(0), torch.tensor(0), at[:, None], at[None, :])
    scores = (q @ k.transpose(2, 3) * scale).masked_fill(~allowed, float("-inf"))
    return (scores.softmax(-1) @ v).to(query.dtype)


def install(patch: pytest.MonkeyPatch) -> list[str]:
    """Make `flash` and `flex` run on the CPU through the kernels of this module, also where the recipe names them; a list that gets
    a backend's name at each call."""
    called: list[str] = []

    def noted(name: str, kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any, **kwargs: Any) -> Tensor:
            called.append(name)
            with torch.autocast("cpu", enabled=False):  # a kernel computes in the types that it is given
                return kernel(*args, **kwargs)

        return call

    # not as a module `flash_attn`: transformers would believe that the package is installed
    patch.setitem(attention._BACKENDS, "flash", functools.partial(attention.varlen, kernel=noted("flash", flash_varlen)))
    patch.setattr("torch.nn.attention.flex_attention.flex_attention", noted("flex", flex))
    real = attention.choose

    def choose(wanted: str, device: torch.device, compute: torch.dtype) -> tuple[str, str]:
        return (wanted, "emulated") if wanted in EMULATED else real(wanted, device, compute)

    patch.setattr(load, "choose", choose)
    return called
