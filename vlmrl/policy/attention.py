"""Attention over packed rows whose groups share a prompt (`policy.pack`), in several backends with the same result.

* `dense`: one masked call, N x N pairs. The definition; for tests and small rows.
* `merge`: prompts see themselves; answer tokens see the prompt in one unmasked call and their own answer in one causal call, joined
  by log-sum-exp. Nothing is copied or masked, no pair is computed in vain. Exact in gradient too: a flash kernel's backward, given
  the *joined* output and log-sum-exp, returns that part's share of the gradient. CPU kernel of torch.
* `two_call`: the same two sets of queries, the prompt's keys and values copied once per answer (GQA keeps them small). Any device.
* `flash`: `merge` on CUDA in 16 bits, by torch's own flash attention over many lengths (`policy.kernels`); where the flash-attn package
  is installed, that package's kernel, which has the prompt's keys and values copied once per answer.
* `flex`: torch's FlexAttention with a block mask; empty blocks are skipped. GPU.

A layout of deeper trees (`policy.runs`) goes the same ways: `merge` and `two_call` by its runs (`agents.tree_attention`), `flash` with one
more call for each depth.

What a layout needs on its device (indices, boundaries, masks) is made once for all layers and their recomputation.

A model takes part by `attach`: its language model calls `prefix_attention` through transformers' attention registry, and the layout
travels as the keyword `prefix_layout` of the forward call. Without that keyword the model's own kernel runs, as before.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vlmrl.errors import ConfigError
from vlmrl.policy.pack import Block, PrefixLayout, to_device
from vlmrl.policy.runs import RowLayout
from vlmrl.policy.windows import TOWER, WINDOWS, one_type, ordered, window_attention
from vlmrl.registry import Catalogue

Backend = Literal["dense", "merge", "two_call", "flash", "flex"]
NAME = "vlmrl_{kernel}"
STATES = "_states"
"""End of the name where layers of linear attention heed a packed row as well: an optional part has seen to that."""


Pair = tuple[Tensor, Tensor]
"""Keys and values."""


class Decoding(Protocol):
    """A running batch that keeps its own keys and values (`rollout.engine_hf`)."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor: ...


class SharedColumns(Protocol):
    """This rank's columns of a row that several ranks share (`train.sequence`)."""

    def to_heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...

    def to_columns(self, out: Tensor) -> Tensor: ...


def choose(wanted: str, device: torch.device, compute: torch.dtype) -> tuple[Backend, str]:
    """Choose a backend. `auto`: CPU `merge`; CUDA `flash` in 16 bits where the GPU or a package has it, else `flex`.

    Returns:
        (backend, why).

    Raises:
        ConfigError: a backend that cannot run here.
    """
    half = compute == torch.bfloat16
    missing = "no CUDA device" if device.type != "cuda" else None if has_flash_package() else _lacks(device)
    flash = half and missing is None
    which = "by flash-attn, which is installed" if has_flash_package() else "by torch's own kernels"
    if wanted == "auto":
        if device.type == "cpu":
            return "merge", "CPU: two flash calls joined by log-sum-exp"
        if flash:
            return "flash", f"CUDA in 16 bits, {which}"
        return "flex", f"CUDA, {missing}" if half else "CUDA in 32 bits"
    if wanted == "merge" and device.type != "cpu":
        raise ConfigError("model.prefix_backend: 'merge' uses torch's CPU kernel; on CUDA use 'flash', 'flex' or 'two_call'")
    if wanted == "flash" and not flash:
        raise ConfigError(f"model.prefix_backend: 'flash' needs CUDA and model.dtype: bfloat16{f' ({missing})' if missing else ''}")
    if wanted == "flex" and device.type != "cuda":
        raise ConfigError("model.prefix_backend: 'flex' has no backward on the CPU; use 'merge'")
    if wanted not in _BACKENDS:
        raise ConfigError(f"model.prefix_backend: unknown '{wanted}' (known: auto, {', '.join(_BACKENDS)})")
    reason = f"asked for; {which}" if wanted == "flash" else "asked for"
    return wanted, reason  # pyright: ignore[reportReturnType]


@functools.cache
def has_flash_package() -> bool:
    """Say whether the package flash-attn is installed."""
    return importlib.util.find_spec("flash_attn") is not None


def _lacks(device: torch.device) -> str | None:
    """Say why torch's own flash attention cannot run on a CUDA device; None where it can."""
    from vlmrl.policy import kernels  # of CUDA

    return kernels.lacks(device)


def require(text_config: Any) -> None:
    """Refuse models that would read a packed row as an ordinary one.

    Raises:
        ConfigError: sliding-window layers, or those of linear attention that do not heed the layout (`STATES`), which no mask over a packed
            row can express; or a model whose attention is not routed through `prefix_attention` and would ignore the layout in silence.
    """
    name = str(text_config._attn_implementation)
    if not name.startswith("vlmrl_"):
        raise ConfigError(
            f"forward: 'shared_prefix' cannot run with model.attention '{name}'; use sdpa or flash_attention_2, or forward: repeat"
        )
    heeding = {"full_attention", "linear_attention" if name.endswith(STATES) else ""}
    if other := sorted(set(getattr(text_config, "layer_types", None) or ()) - heeding):
        raise ConfigError(
            f"forward: 'shared_prefix' needs full attention in every layer, but this model has {', '.join(other)} layers; "
            "use forward: repeat"
        )


def attach(model: Any, kernel: str, *, device: torch.device, compute: torch.dtype) -> None:
    """Route the language model's attention through `prefix_attention`; the vision tower keeps `kernel`, or what `tower_kernel` says.

    `eager` is left alone: it adds its mask and would take a boolean one for numbers, and it is a reference of its own.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if kernel == "eager":
        return
    name = NAME.format(kernel=kernel)
    AttentionInterface.register(name, functools.partial(prefix_attention, fallback=ALL_ATTENTION_FUNCTIONS[kernel]))
    # rows without a layout get the masks that their kernel gets without us
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[kernel])
    AttentionInterface.register(WINDOWS, window_attention)
    AttentionInterface.register(TOWER, _tower_attention)
    model.set_attn_implementation({"text_config": name, "vision_config": tower_kernel(kernel, device, compute)})


def _tower_attention(*args: Any, **options: Any) -> tuple[Tensor, None]:
    """`kernels.tower_attention`, which only CUDA calls."""
    from vlmrl.policy.kernels import tower_attention

    return tower_attention(*args, **options)


def tower_kernel(kernel: str, device: torch.device, compute: torch.dtype) -> str:
    """Choose the vision tower's attention, by transformers' name. `sdpa` is one call for each window, some thousand for a long video; on
    CUDA in 16 bits all windows go through torch's own flash attention at once, and on the CPU all windows of a length do.
    """
    if kernel == "sdpa" and device.type == "cuda" and compute == torch.bfloat16 and _lacks(device) is None:
        return TOWER
    return WINDOWS if kernel == "sdpa" else kernel


def prefix_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    fallback: Callable[..., Any],
    scaling: float | None = None,
    dropout: float = 0.0,
    prefix_layout: RowLayout | None = None,
    prefix_backend: Backend = "dense",
    prefix_columns: SharedColumns | None = None,
    record: list[tuple[Tensor, Tensor]] | None = None,
    decoding: Decoding | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as transformers' attention functions do. query [1, Hq, N, D], key and value [1, Hkv, N, D].

    All three are brought to one type first, the autocast type where autocast is on: rotary embeddings multiply query and key by
    float32 and leave them so, and most kernels take one type only. Done here and once, so that training, prefill and decoding
    round in the same place and the cache of keys holds what the kernels read.

    With `prefix_columns` N are this rank's columns of a row that several ranks share.

    `record` collects every layer's keys and values (prefill). With `decoding` the N tokens are one new token of N running answers.

    Returns:
        ([1, N, Hq, D], None).

    Raises:
        RuntimeError: a mask, a cache or dropout came along with a layout: the packed row would not mean what it says.
    """
    query, key, value = one_type(query, key, value)
    if decoding is not None:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        return decoding.attend(module.layer_idx, query, key, value, scale), None
    if record is not None:  # prefill: what decoding will read, in the type that these kernels read
        record.append((key, value))
    if prefix_layout is None:
        plain = functools.partial(fallback, scaling=scaling, dropout=dropout, **kwargs)
        return ordered(lambda q, k, v: plain(module, q, k, v, attention_mask), query, key, value)
    if attention_mask is not None or dropout or query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise RuntimeError("a packed row takes no attention mask, no cache and no attention dropout")
    if prefix_columns is not None:
        query, key, value = prefix_columns.to_heads(query, key, value)
    if query.shape[2] != prefix_layout.tokens:
        raise RuntimeError(f"the packed row has {query.shape[2]} tokens but its layout describes {prefix_layout.tokens}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = _BACKENDS[prefix_backend](query, key, value, prefix_layout, scale)
    if prefix_columns is not None:
        out = prefix_columns.to_columns(out)
    return out.transpose(1, 2).contiguous(), None


def rows_of(x: Tensor, columns_GC: Tensor) -> Tensor:
    """Gather columns of a packed row, [1, H, N, D], as padded rows.

    Returns:
        [G, H, C, D]
    """
    return x[0, :, columns_GC].transpose(0, 1).contiguous()


def _heads(x: Tensor, heads: int) -> Tensor:
    """Repeat key or value heads to the query's number, as GQA shares them."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def _dense(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scale: float) -> Tensor:
    mask = _dense_mask(layout, query.device)
    heads = query.shape[1]
    return _call(query, _heads(key, heads), _heads(value, heads), scale, mask)


@functools.lru_cache(maxsize=1)
def _dense_mask(layout: RowLayout, device: torch.device) -> Tensor:
    return to_device(layout.allow(), device)[None, None]


class _Answers(NamedTuple):
    """Where the answers of one group stand, as padded rows. G answers that are not empty, C tokens of the longest."""

    columns_GC: Tensor
    """Counted from the first answer token; behind an answer's end its last one."""
    places: Tensor
    """Of the real tokens in G * C."""

    def mask(self, prefix: int) -> Tensor:
        """Say which key of [prompt; answer] each token of an answer may see, bool [1, 1, C, prefix + C]: all of the prompt, and causal."""
        width, device = self.columns_GC.shape[1], self.columns_GC.device
        q, k = (torch.arange(n, device=device) for n in (width, prefix + width))
        return (k[None, :] <= q[:, None] + prefix)[None, None]


@functools.lru_cache(maxsize=2)
def _answers(layout: PrefixLayout, device: torch.device) -> tuple[_Answers | None, ...]:
    """Find the answers of every group; None for groups that are ordinary causal rows."""
    return tuple(None if _single(block) else _padded(block, device) for block in layout.blocks)


@functools.lru_cache(maxsize=2)
def _masks(layout: PrefixLayout, device: torch.device) -> tuple[Tensor | None, ...]:
    pairs = zip(layout.blocks, _answers(layout, device), strict=True)
    return tuple(None if answers is None else answers.mask(block.prefix) for block, answers in pairs)


def _padded(block: Block, device: torch.device) -> _Answers:
    lengths = [n for n in block.suffixes if n]
    width, ends = max(lengths), torch.tensor(lengths).cumsum(0)
    within = torch.arange(width)[None]
    # [G, C]: behind its end an answer repeats its last column, whose output is dropped (`places`)
    columns = (ends - torch.tensor(lengths))[:, None] + within.minimum(torch.tensor(lengths)[:, None] - 1)
    places = torch.cat([g * width + torch.arange(n) for g, n in enumerate(lengths)])
    return _Answers(to_device(columns, device), to_device(places, device))


def _call(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """torch's attention, causal without a mask."""
    shared = query.shape[1] != key.shape[1]  # asked for only where it is so: not every kernel of CUDA takes part
    call = functools.partial(F.scaled_dot_product_attention, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=shared)
    return ordered(call, query, key, value)


def _single(block: Block) -> bool:
    """Whether the group has one answer at most, and so is an ordinary causal row."""
    return sum(1 for n in block.suffixes if n) <= 1


def _pieces(x: Tensor, layout: PrefixLayout) -> list[tuple[Tensor, ...]]:
    """[1, H, N, D] cut into the blocks of the row: (row) of a single answer, else (prompt, answers).

    One cut: the gradient of a slice is a tensor as long as the whole row, and a row of many blocks would make one per block.
    """
    sizes = [(block.end - block.start,) if _single(block) else (block.prefix, sum(block.suffixes)) for block in layout.blocks]
    parts = iter(torch.split(x, [n for of_block in sizes for n in of_block], dim=2))
    return [tuple(next(parts) for _ in of_block) for of_block in sizes]


def _two_call(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scale: float) -> Tensor:
    key, value = _heads(key, query.shape[1]), _heads(value, query.shape[1])
    if not isinstance(layout, PrefixLayout):
        return _OF_TREES["two_call"](query, key, value, layout, scale)
    outs: list[Tensor] = []
    pieces = (_pieces(x, layout) for x in (query, key, value))
    for answers, mask, qs, ks, vs in zip(_answers(layout, query.device), _masks(layout, query.device), *pieces, strict=True):
        outs.append(_call(qs[0], ks[0], vs[0], scale))  # the prompt, or the whole of an ordinary row
        if answers is None:
            continue
        columns = answers.columns_GC
        count, width = columns.shape
        # [G, H, prefix + C, D]: the prompt's in front of each answer's own
        keys, values = (torch.cat([prompt.expand(count, -1, -1, -1), rows_of(own, columns)], dim=2) for prompt, own in (ks, vs))
        out = _call(rows_of(qs[1], columns), keys, values, scale, mask)
        # [G, H, C, D] -> [1, H, answer tokens, D], without padding
        outs.append(out.transpose(0, 1).reshape(1, query.shape[1], count * width, -1)[:, :, answers.places])
    return torch.cat(outs, dim=2)


def _merge(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scale: float) -> Tensor:
    if not isinstance(layout, PrefixLayout):
        return _OF_TREES["merge"](query, key, value, layout, scale)
    outs: list[Tensor] = []
    pieces = (_pieces(side_by_side(x), layout) for x in (query, key, value))
    for block, qs, ks, vs in zip(layout.blocks, *pieces, strict=True):
        outs.append(_call(qs[0], ks[0], vs[0], scale))
        if not _single(block):
            joined: Any = _Joined.apply(qs[1], ks[0], vs[0], ks[1], vs[1], block.suffixes, scale)
            outs.append(joined)
    return torch.cat(outs, dim=2)


class _Joined(torch.autograd.Function):
    """Answers of one group: unmasked attention to the prompt joined with causal attention inside each answer.

    The kernel takes views, and fewer heads of keys than of queries, so nothing is copied for it.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, kp: Tensor, vp: Tensor, ks: Tensor, vs: Tensor, lengths: Sequence[int], scale: float) -> Any:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out_p, lse_p = flash(q, kp, vp, 0.0, False, scale=scale)
        out_s, lse_s = _each(lambda *own: flash(*own, 0.0, True, scale=scale), lengths, q, ks, vs)
        # softmax over both sets of keys: out = sum over sets of exp(lse_set - lse) out_set
        lse = torch.logaddexp(lse_p, lse_s)
        out = (out_p * (lse_p - lse).exp()[..., None] + out_s * (lse_s - lse).exp()[..., None]).to(q.dtype)
        ctx.save_for_backward(q, kp, vp, ks, vs, out, lse)
        ctx.lengths, ctx.scale = lengths, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, kp, vp, ks, vs, out, lse = ctx.saved_tensors
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grad = side_by_side(grads[0])
        # given the joined `out` and `lse`, each call makes exp(score - lse), the probabilities of its keys among all
        dq, dkp, dvp = flash(grad, q, kp, vp, out, lse, 0.0, False, scale=ctx.scale)
        dq_s, dks, dvs = _each(lambda *own: flash(*own, 0.0, True, scale=ctx.scale), ctx.lengths, grad, q, ks, vs, out, lse)
        return dq + dq_s, dkp, dvp, dks, dvs, None, None


def side_by_side(x: Tensor) -> Tensor:
    """Copy a tensor where the numbers of a head do not stand side by side: the CPU kernel heeds strides of the other dimensions, and reads
    the last one as if it were 1.

    Returns:
        [1, H, N, D], as `x`.
    """
    return x if x.stride(-1) == 1 else x.contiguous()


def _each(call: Callable[..., Sequence[Tensor]], lengths: Sequence[int], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Call with the columns of each answer (dimension 2 of all tensors), and join what it returns."""
    answers = zip(*(x.split([n for n in lengths if n], dim=2) for x in tensors), strict=True)
    return tuple(torch.cat(parts, dim=2) for parts in zip(*(call(*answer) for answer in answers), strict=True))


Attend = Callable[[Tensor, Tensor, Tensor, RowLayout, float], Tensor]
_BACKENDS: Catalogue[Attend] = Catalogue(
    "backend of model.prefix_backend",
    {"dense": _dense, "merge": _merge, "two_call": _two_call},
    {"flash": "vlmrl.policy.flash:flash", "flex": "vlmrl.policy.flex:flex"},
)
_OF_TREES: Catalogue[Attend] = Catalogue("backend for trees")


def grid_attention(q: Tensor, prompt: Pair, own: Pair, mask: Tensor, scale: float) -> Tensor:
    """Attend from q [A, K, G, R, D] to keys and values of the prompts [A, K, P, D] and of the answers [A, K, G, T, D].
    `mask` [A, 1, 1, P + T] is added to the scores.

    Returns:
        [A*G, K*R, D]
    """
    prompts, heads, width, shared, size = q.shape
    to_prompt = _products(q.reshape(prompts, heads, width * shared, size), prompt[0])
    # [A, K, G * R, P + T]: one softmax over the prompt's columns and the answer's own
    score = torch.cat([to_prompt, _products(q, own[0]).flatten(2, 3)], dim=3)
    del to_prompt  # in the longest answers these are the largest tensors of a layer
    p = score.mul_(scale).add_(mask).softmax(dim=3)  # in place: nothing here has a gradient
    del score
    p = p.to(q.dtype)
    count = prompt[0].shape[2]
    # all answers of a prompt in one product with its values
    out = (p[..., :count] @ prompt[1]).view(prompts, heads, width, shared, size)
    out = out + p[..., count:].reshape(prompts, heads, width, shared, own[0].shape[3]) @ own[1]
    return out.transpose(1, 2).reshape(prompts * width, heads * shared, size)


def _products(q: Tensor, k: Tensor) -> Tensor:
    """q k^T over the last dimension, float32: rounded to 16 bit, as a plain product of 16-bit matrices is, the scores would differ from
    those of the training kernels, which never round them."""
    with torch.autocast(q.device.type, enabled=False):
        return q.float() @ k.float().transpose(-2, -1)
