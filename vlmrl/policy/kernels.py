"""Flash attention over sequences of many lengths, by the operations that torch has itself: for packed rows and for the vision tower.

A packed row is two calls on one set of tensors, of which nothing is copied or padded:

    own     every prompt and every answer against itself, causal
    cross   the answers of a group against its prompt, all of it

and the answers' two outputs are joined by log-sum-exp, as in the backend `merge` of the CPU: backward gives each call the joined output
and the joined log-sum-exp, and gets that call's share of the gradient. Both calls see the whole row. In `cross` a group is three
sequences of (queries, keys): (prompt, none), (answers, prompt), (none, answers), so that boundaries alone say who meets whom. The kernel
writes 0 and log-sum-exp inf for queries without keys, and gradients of 0 for keys without queries. In a tree there is one such call for
each depth: subtrees of one depth are ranges of columns that do not meet.

The operations need CUDA and 16 bits. Tests put others with the same contract in their place (`FLASH`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vlmrl.policy.ordered import in_order, wanted
from vlmrl.policy.pack import to_device
from vlmrl.policy.runs import ColumnRun, RowLayout
from vlmrl.policy.windows import one_type, without_mask


class Operations(NamedTuple):
    """torch's forward and backward, or what stands for them; signatures of `aten::_flash_attention_forward` and `_backward`."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


FLASH = Operations(torch.ops.aten._flash_attention_forward, torch.ops.aten._flash_attention_backward)


class Lengths(NamedTuple):
    """Which queries meet which keys: sequence i is queries [q[i], q[i+1]) and keys [k[i], k[i+1])."""

    q: Tensor
    """int32 [sequences + 1]."""
    k: Tensor
    longest_q: int
    longest_k: int
    causal: bool
    pairs: tuple[tuple[int, int], ...] = ()
    """(number of queries, number of keys) of each sequence; none where the host does not know them."""

    @staticmethod
    def of(pairs: Sequence[tuple[int, int]], *, causal: bool, device: torch.device) -> Lengths:
        """Make it from (number of queries, number of keys) of each sequence; one copy to the device."""
        # [sequences + 1, 2] -> running sums [2, sequences + 1], as flash kernels take them
        ends = to_device(torch.tensor([(0, 0), *pairs]).cumsum(0).T.to(torch.int32).contiguous(), device)
        # of single queries the kernel makes a batch of its own, in another layout: told that there may be two, it does not
        return Lengths(ends[0], ends[1], max(2, *(q for q, _ in pairs)), max(k for _, k in pairs), causal, tuple(pairs))


def lacks(device: torch.device) -> str | None:
    """Say why torch's own flash attention cannot run on a CUDA device; None where it can."""
    if not torch.backends.cuda.is_flash_attention_available() or torch.version.hip:
        return "this torch has no flash attention of CUDA"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "flash attention needs a GPU of compute capability 8.0"
    return None


# ---- packed rows -------------------------------------------------------------------------------------------------------


class Segments(NamedTuple):
    """Index tensors of a layout's calls, on the device."""

    own: Lengths
    cross: tuple[tuple[Lengths, Tensor], ...]
    """For each depth at which runs are seen from below: who meets whom, and the columns of the tokens that the call gives keys to."""


@functools.lru_cache(maxsize=2)
def segments_of(layout: RowLayout, device: torch.device) -> Segments:
    """Plan the calls of a layout. Runs that nothing sees from below are no part of `cross`. All layers share the tensors."""
    depths: list[int] = []
    levels: dict[int, list[ColumnRun]] = {}
    for run in layout.runs:
        depths.append(0 if run.parent < 0 else depths[run.parent] + 1)
        if run.stop < run.end:
            levels.setdefault(depths[-1], []).append(run)
    return Segments(
        own=Lengths.of([(run.stop - run.start, run.stop - run.start) for run in layout.runs], causal=True, device=device),
        cross=tuple(_cross(levels[depth], layout.tokens, device) for depth in sorted(levels)),
    )


def _cross(runs: Sequence[ColumnRun], tokens: int, device: torch.device) -> tuple[Lengths, Tensor]:
    """Pair runs of one depth with what sees them from below. All other columns are sequences without keys, and without queries."""
    pairs: list[tuple[int, int]] = []
    at = 0
    for run in runs:
        above, below = run.stop - run.start, run.end - run.stop
        pairs += [(run.start - at, 0), (0, run.start - at), (above, 0), (below, above), (0, below)]
        at = run.end
    pairs += [(tokens - at, 0), (0, tokens - at)]
    columns = torch.cat([torch.arange(run.stop, run.end) for run in runs])
    return Lengths.of([pair for pair in pairs if any(pair)], causal=False, device=device), to_device(columns, device)


def segments(query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, scale: float) -> Tensor:
    """Attend over a packed row. query [1, Hq, N, D], key and value [1, Hkv, N, D].

    Returns:
        [1, Hq, N, D]
    """
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out: Any = _Segments.apply(q, k, v, segments_of(layout, query.device), scale)
    return out.transpose(0, 1)[None]


class _Segments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Segments, scale: float) -> Tensor:
        out, lse, state = _forward(q, k, v, plan.own, scale)
        if len(plan.cross) > 1:
            out = out.to(torch.promote_types(out.dtype, torch.float32))  # rounded once, however deep
        for lengths, columns in plan.cross:  # a call for each depth; log-sum-exp joins them in any order
            out_p, lse_p, _ = _forward(q, k, v, lengths, scale)
            out, lse = _joined(out, lse, out_p, lse_p, columns)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse, *state)
        ctx.plan, ctx.scale = plan, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, out, lse, *state = ctx.saved_tensors
        # each call gets the joined output and log-sum-exp, and so gives its share: the gradient is their sum
        parts = _backward(grads[0], q, k, v, out, lse, ctx.plan.own, ctx.scale, state)
        for lengths, _ in ctx.plan.cross:
            more = _backward(grads[0], q, k, v, out, lse, lengths, ctx.scale, state)
            parts = [a + b for a, b in zip(parts, more, strict=True)]
        return *parts, None, None


def _joined(out: Tensor, lse: Tensor, out_p: Tensor, lse_p: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """Join output [N, H, D] and log-sum-exp [H, N] over the keys of both calls, in the columns (`answers`) that have keys in both."""
    own, prompt = lse.index_select(1, answers), lse_p.index_select(1, answers)
    both = torch.logaddexp(own, prompt)
    of_own, of_prompt = ((part - both).exp().T[..., None] for part in (own, prompt))
    joined = out.index_select(0, answers) * of_own + out_p.index_select(0, answers) * of_prompt
    return out.index_copy(0, answers, joined.to(out.dtype)), lse.index_copy(1, answers, both)


# ---- vision tower ------------------------------------------------------------------------------------------------------


def tower_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    cu_seq_lens_k: Tensor,
    max_length_q: int,
    max_length_k: int,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' attention functions do, in a vision tower: all its windows in one call. [1, H, N, D] each.

    Returns:
        ([1, N, H, D], None).

    Raises:
        RuntimeError: a mask or dropout, which a tower of the supported families does not have.
    """
    without_mask(attention_mask, dropout)
    q, k, v = (x[0].transpose(0, 1) for x in one_type(query, key, value))
    ends_q, ends_k = (x if x.device == query.device else to_device(x, query.device) for x in (cu_seq_lens_q, cu_seq_lens_k))
    lengths = Lengths(ends_q, ends_k, max(2, max_length_q), max_length_k, causal=False)
    out: Any = _Varlen.apply(q, k, v, lengths, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return out[None], None


class _Varlen(torch.autograd.Function):
    """Attention as `torch.nn.attention.varlen.varlen_attn`, with a backward that keeps its order where the run is deterministic."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, scale: float) -> Tensor:
        out, lse, state = _forward(q, k, v, lengths, scale)
        ctx.save_for_backward(q, k, v, out, lse, *state)
        ctx.lengths, ctx.scale = lengths, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, out, lse, *state = ctx.saved_tensors
        return *_backward(grads[0], q, k, v, out, lse, ctx.lengths, ctx.scale, state), None, None


# ---- the operations ----------------------------------------------------------------------------------------------------


def _forward(q: Tensor, k: Tensor, v: Tensor, at: Lengths, scale: float) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Run the kernel: (output [N, H, D], log-sum-exp [H, N], the state of the random numbers, which backward asks for)."""
    out, lse, seed, unused, _ = FLASH.forward(q, k, v, at.q, at.k, at.longest_q, at.longest_k, 0.0, at.causal, False, scale=scale)
    return out, lse, (seed, unused)


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, at: Lengths, scale: float, state: Sequence[Tensor]
) -> list[Tensor]:
    """Compute the gradients of query, key and value."""

    def call(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, at: Lengths) -> list[Tensor]:
        with in_order():
            return list(
                FLASH.backward(grad, q, k, v, out, lse, at.q, at.k, at.longest_q, at.longest_k, 0.0, at.causal, *state, scale=scale)
            )

    grad = grad.contiguous()
    if not wanted():  # the fast kernel, which adds up in any order, takes all sequences together
        return call(grad, q, k, v, out, lse, at)
    alone, rest = _alone(at.pairs, q.shape[1], at.causal, q.device)
    parts = call(grad, q, k, v, out, lse, rest or at)
    for span in alone:
        of_q, of_k = slice(*span.q), slice(*span.k)
        # in `rest` these are queries without keys and keys without queries: what the big call left there is filled in
        own = call(grad[of_q], q[of_q], k[of_k], v[of_k], out[of_q], lse[:, of_q].contiguous(), span.at)
        for whole, where, part in zip(parts, (of_q, of_k, of_k), own, strict=True):
            whole[where] = part
    return parts


class Alone(NamedTuple):
    """A sequence by itself: where its queries and keys stand, and its lengths."""

    q: tuple[int, int]
    k: tuple[int, int]
    at: Lengths


LONG = 1024
"""Keys from which on a sequence may get a call of its own."""
UNEVEN = 1.5
"""How much longer than all multiprocessors together the ones that have a sequence may work before it gets a call of its own."""


@functools.lru_cache(maxsize=8)
def _alone(pairs: tuple[tuple[int, int], ...], heads: int, causal: bool, device: torch.device) -> tuple[tuple[Alone, ...], Lengths | None]:
    """Choose the sequences that get a call of their own in an ordered backward. Returns them, and the others with these left out; None
    where all stay together.

    The ordered kernel gives each head of each sequence to as many multiprocessors as there are for all of them alike, and one goes through
    the keys one after the other. So in a call of a long prompt and many answers most have nothing to do while a few work on the prompt.
    """
    work = [q * k for q, k in pairs]
    count = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
    splits = -(-count // (len(pairs) * heads)) if pairs else 1
    # own / splits is the work of one multiprocessor at a head of a sequence, sum * heads / count the mean over all of them
    most = UNEVEN * sum(work) * heads / count * splits
    chosen = {n for n, ((_, k), own) in enumerate(zip(pairs, work, strict=True)) if own > most and k >= LONG}
    if not chosen or sum(own > 0 for own in work) == 1 == len(pairs):
        return (), None
    spans: list[Alone] = []
    others: list[tuple[int, int]] = []
    at_q = at_k = 0
    for n, (q, k) in enumerate(pairs):
        if n in chosen:
            spans.append(Alone((at_q, at_q + q), (at_k, at_k + k), Lengths.of([(q, k)], causal=causal, device=device)))
            others += [(q, 0), (0, k)]
        else:
            others.append((q, k))
        at_q, at_k = at_q + q, at_k + k
    return tuple(spans), Lengths.of(others, causal=causal, device=device)
