"""The CUDA kernels of packed rows and of the vision tower written out for the CPU: they check their arguments as the real ones do.

What is checked is what `mha_varlen_fwd` and `mha_varlen_bwd` of flash-attn 2 check before they launch (torch has the same behind
`aten::_flash_attention_forward` and `_backward`), and what torch's FlexAttention says of its inputs. A kernel that takes whatever it
is given would let a mix of types or devices through that stops the first step on a GPU. They run on the device of
`tests.support.pretend` too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.pretend import Pretend
from vlmrl.policy import attention, flash, load
from vlmrl.policy import kernels as library
from vlmrl.policy.kernels import Operations

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
    check(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    wide = torch.promote_types(q.dtype, torch.float32)
    outs: list[Tensor] = []
    for at_q, at_k in sequences(cu_seqlens_q, cu_seqlens_k):
        qs = q[at_q].to(wide)
        ks, vs = (x[at_k].to(wide).repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", qs, ks) * softmax_scale
        outs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(behind(qs, ks), float("-inf")).softmax(-1), vs))
    return torch.cat(outs).to(q.dtype)


def check(q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, longest_q: int, longest_k: int) -> None:
    """What `mha_varlen_fwd` asks of its arguments."""
    for name, x, heads in (("q", q, q.shape[1]), ("k", k, k.shape[1]), ("v", v, k.shape[1])):
        assert x.dim() == 3, f"{name} must have shape (total, heads, head_size), not {tuple(x.shape)}"
        assert x.shape[1:] == (heads, q.shape[2]), f"{name} must have shape (total, {heads}, {q.shape[2]}), not {tuple(x.shape)}"
        assert x.stride(-1) == 1, "Input tensor must have contiguous last dimension"
        assert x.device == q.device, f"{name} must be on the device of q"
    assert k.shape[0] == v.shape[0], "k and v must have one token count"
    assert q.shape[2] <= MOST_HEAD_DIM, "FlashAttention forward only supports head dimension at most 256"
    assert q.shape[2] % 8 == 0, "head_size should be a multiple of 8"
    assert q.shape[1] % k.shape[1] == 0, "Number of heads in key/value must divide number of heads in query"
    for name, ends, x, longest in (("q", ends_q, q, longest_q), ("k", ends_k, k, longest_k)):
        assert ends.dtype == torch.int32, f"cu_seqlens_{name} must have dtype int32"
        assert ends.is_contiguous(), f"cu_seqlens_{name} must be contiguous"
        assert ends.device == q.device, f"cu_seqlens_{name} must be on the device of q"
        assert ends.shape == ends_q.shape, f"cu_seqlens_{name} must have shape (batch_size + 1)"
        assert len(ends) > 1, "batch size must be positive"
        lengths = ends.diff()
        assert int(ends[0]) == 0, "the first sequence starts at 0"
        assert int(ends[-1]) == x.shape[0], "the last sequence ends with the tensor"
        assert bool((lengths >= 0).all()), "ends rise"
        assert type(longest) is int, "max_seqlen is a plain int"
        assert int(lengths.max()) <= longest, f"max_seqlen_{name} is below the longest sequence"


def sequences(ends_q: Tensor, ends_k: Tensor) -> list[tuple[slice, slice]]:
    of_q, of_k = ends_q.tolist(), ends_k.tolist()
    pairs = zip(of_q, of_q[1:], of_k, of_k[1:], strict=False)
    return [(slice(a, b), slice(c, d)) for a, b, c, d in pairs]


def behind(q: Tensor, k: Tensor) -> Tensor:
    """The keys that a causal query does not see, aligned at the bottom right."""
    at_q, at_k = (torch.arange(len(x), device=q.device) for x in (q, k))
    return at_k[None] > at_q[:, None] + len(k) - len(q)


# ---- aten::_flash_attention_forward and _backward ------------------------------------------------------------------------


def aten_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    sixteen: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(output [T, H, D], log-sum-exp [H, T] in float32 (float64 for float64), seed and offset uint64 [2], unused uint64 [], debug []).

    A query without keys has output 0 and log-sum-exp inf. `sixteen`: refuse other types, as the real one does."""
    assert dropout_p == 0.0
    assert not return_debug_mask, "return_softmax is only supported when p_dropout > 0.0"
    if sixteen:
        assert query.dtype in (torch.bfloat16, torch.float16), "FlashAttention only support fp16 and bf16 data type"
    assert query.dtype == key.dtype == value.dtype, "query, key and value must have the same dtype"
    check(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k)
    # with `max_q` 1 the real one reshapes the queries to a batch of one token each, which empty sequences do not have
    assert max_q > 1 or bool((cum_seq_q.diff() == 1).all())
    wide = torch.promote_types(query.dtype, torch.float32)
    out = torch.full_like(query, float("nan"))
    lse = torch.full((query.shape[1], query.shape[0]), float("nan"), dtype=wide, device=query.device)
    for at_q, at_k in sequences(cum_seq_q, cum_seq_k):
        scores, _, vs = _scores(query[at_q], key[at_k], value[at_k], is_causal, scale)
        empty = at_k.start == at_k.stop
        out[at_q] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), vs).to(query.dtype) if not empty else 0
        lse[:, at_q] = scores.logsumexp(-1) if not empty else float("inf")
    assert not bool(out.isnan().any()), "a query without a sequence"
    seed = torch.zeros(2, dtype=torch.int64, device=query.device).to(torch.uint64)
    return out, lse, seed, torch.zeros((), dtype=torch.int64, device=query.device).to(torch.uint64), query.new_zeros(0)


def aten_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, from the output and log-sum-exp that it is given and not from those that it would compute."""
    assert dropout_p == 0.0
    if torch.are_deterministic_algorithms_enabled():
        assert not torch.is_deterministic_algorithms_warn_only_enabled(), "Flash Attention defaults to a non-deterministic algorithm."
    assert grad_out.dtype == out.dtype == query.dtype == key.dtype == value.dtype, "query and dout must have the same dtype"
    check(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k)
    wide = torch.promote_types(query.dtype, torch.float32)
    assert logsumexp.dtype == wide
    assert logsumexp.shape == (query.shape[1], query.shape[0])
    assert logsumexp.is_contiguous(), "read by its address, a row of all tokens for each head"
    assert grad_out.shape == out.shape == query.shape
    assert rng_state.dtype == torch.uint64
    assert rng_state.shape == (2,)
    assert {x.device for x in (grad_out, out, logsumexp, rng_state, unused)} == {query.device}
    d_q, d_k, d_v = (torch.zeros(x.shape, dtype=wide, device=x.device) for x in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    for at_q, at_k in sequences(cum_seq_q, cum_seq_k):
        if at_q.start == at_q.stop or at_k.start == at_k.stop:
            continue
        scores, ks, vs = _scores(query[at_q], key[at_k], value[at_k], is_causal, scale)
        grad, qs = grad_out[at_q].to(wide), query[at_q].to(wide)
        p = (scores - logsumexp[:, at_q, None]).exp()
        of_p = torch.einsum("qhd,khd->hqk", grad, vs)
        total = (grad * out[at_q].to(wide)).sum(-1).T
        of_s = p * (of_p - total[:, :, None]) * _scale(query, scale)
        d_q[at_q] = torch.einsum("hqk,khd->qhd", of_s, ks)
        d_k[at_k] = torch.einsum("hqk,qhd->khd", of_s, qs).unflatten(1, (-1, groups)).sum(2)
        d_v[at_k] = torch.einsum("hqk,qhd->khd", p, grad).unflatten(1, (-1, groups)).sum(2)
    return d_q.to(query.dtype), d_k.to(key.dtype), d_v.to(value.dtype)


def _scale(query: Tensor, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _scores(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """(scores [H, Q, K], keys and values with a head for each of the queries')."""
    wide = torch.promote_types(q.dtype, torch.float32)
    ks, vs = (x.to(wide).repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.to(wide), ks) * _scale(q, scale)
    return (scores.masked_fill(behind(q, k), float("-inf")) if causal else scores), ks, vs


ATEN = Operations(aten_forward, aten_backward)
"""For numbers of any type, so that plans can be compared exactly."""
ATEN_16 = Operations(functools.partial(aten_forward, sixteen=True), aten_backward)


# ---- FlexAttention -------------------------------------------------------------------------------------------------------


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
    assert block_mask.kv_indices.device == query.device, "the block mask must be on the device of the query"
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (query, key, value))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    at = torch.arange(n, device=query.device)
    zero = torch.zeros((), dtype=torch.int64, device=query.device)
    allowed = block_mask.mask_mod(zero, zero, at[:, None], at[None, :])
    scores = (q @ k.transpose(2, 3) * scale).masked_fill(~allowed, float("-inf"))
    return (scores.softmax(-1) @ v).to(query.dtype)


def install(patch: pytest.MonkeyPatch, *, flash_attn: bool = False) -> list[str]:
    """Make `flash` and `flex` run on the CPU through the kernels of this module, also where the recipe names them; a list that gets
    a backend's name at each call. `flash_attn`: as if that package were installed."""
    called: list[str] = []

    def noted(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            called.append(name)
            # a kernel computes in the types that it is given, and what it does inside is nobody's wait
            with torch.autocast("cpu", enabled=False), muted():
                return kernel(*args, **kwargs)

        return call

    # not as a module `flash_attn`: transformers would believe that the package is installed
    package = functools.partial(flash.varlen, kernel=noted("flash", flash_varlen))
    own = Operations(noted("flash", ATEN_16.forward), noted("flash", ATEN_16.backward))
    patch.setattr(library, "FLASH", own)
    patch.setitem(attention._BACKENDS, "flash", package if flash_attn else library.segments)
    patch.setattr("torch.nn.attention.flex_attention.flex_attention", noted("flex", flex))
    real = attention.choose

    def choose(wanted: str, device: torch.device, compute: torch.dtype) -> tuple[str, str]:
        return (wanted, "emulated") if wanted in EMULATED else real(wanted, device, compute)

    patch.setattr(load, "choose", choose)
    return called


@contextmanager
def muted() -> Iterator[None]:
    """Nothing is counted on the pretended device, if there is one."""
    with Pretend.stack[-1].muted() if Pretend.stack else nullcontext():
        yield
