"""Log-prob and entropy of target tokens from hidden states, without logits of [M, V] in memory.

The output matrix is walked in chunks of the vocabulary and of the rows. The forward pass keeps a running maximum and sum per row
(online log-sum-exp), the target's logit and the running sum that the entropy needs; it saves one number per row, log Z. The backward
pass makes each chunk of logits again and adds its part of the gradients:

    z = (h W^T + b) / T    log p(t) = z_t - log Z    H = log Z - sum_v p_v z_v
    z = c tanh((h W^T + b) / c) / T    with a soft cap c
    dz_v = [g (1[v = t] - p_v) - g_H p_v (log p_v + H)] / T    the second term only where a gradient of the entropy is asked for

Only log-prob and entropy are fused, so any loss can follow; other quantities of the logits (`TokenStat`) take a pass of their own
(`policy.token_stats`). Chunk sizes follow the fused linear losses of Liger Kernel (arXiv:2410.10989).

Ours: when everything fits in one chunk, its probabilities are kept from forward and nothing is computed twice. Partial products of
16-bit matrices are rounded to 16 bit, as one whole product would be, and added up in float32. `torch.amp.custom_fwd` and `custom_bwd`
bind one device type when a class is defined; this one class serves all, so it reads the autocast type at the call, switches
autocast off inside, and casts chunk by chunk, which also spares the 16-bit copy of the whole matrix.

Letters: M rows (response tokens), V vocabulary, H hidden size, R and C rows and columns of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from vlmrl.policy.pack import Row, to_device

CHUNK_ROWS = 2048
CHUNK_VOCAB = 4096

_LOW = -1e30
"""Logit of a forbidden token: its probability is exactly 0 like that of -inf, without -inf - -inf and 0 * inf on the way."""


@dataclass(frozen=True)
class TokenStat:
    """A quantity per token that is asked of the head besides log-prob and entropy."""

    function: Callable[[torch.Tensor], torch.Tensor]
    """[M, V] -> [M]: from the log-probs over what may be drawn, without the forbidden ids. It sees a few rows at a time."""
    gradient: bool = False
    """Whether the result can be differentiated."""

    def of_rows(self, rows: Sequence[Row]) -> TokenStat:
        """Give the quantity for the rows of one micro-batch; one of the logits alone is the same for all."""
        return self


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Options of the head: keywords of the forward of every layout."""

    temperature: float
    forbidden: tuple[int, ...]
    entropy_gradient: bool = False
    stats: Mapping[str, TokenStat] = field(default_factory=dict[str, TokenStat])
    """What is computed besides, by any names."""


def streaming_logprobs(
    hidden_MH: torch.Tensor,
    head_VH: torch.Tensor,
    targets_M: torch.Tensor,
    *,
    temperature: float,
    forbidden: tuple[int, ...],
    entropy: bool = True,
    entropy_gradient: bool = False,
    chunk_rows: int = CHUNK_ROWS,
    chunk_vocab: int = CHUNK_VOCAB,
    bias: torch.Tensor | None = None,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute log-probs and entropies of softmax((hidden @ head.T + bias) / temperature) without the forbidden ids. The entropy has a
    gradient only with `entropy_gradient`. `cap`: logits l are bent to cap tanh(l / cap) before the temperature.

    Products run in the autocast type where autocast is on, as `hidden @ head.T` does.
    `targets_M` may lie on the host: they are looked at there, and nothing waits for the device.
    A forbidden target has log-prob -inf. With `entropy=False` the second result is NaN, so that nobody takes it for a measurement.
    No rows give empty results that take part in backward with gradients of zero. Backward can run once, not twice differentiated.

    Returns:
        (log-prob [M] with gradient, entropy [M]) in nats; both float32, or float64 for float64 input.

    Raises:
        ValueError: shapes or types that do not match, a target or forbidden id outside the vocabulary, nothing left to sample,
            a temperature or chunk size that is not positive.
    """
    plan = plan_of(hidden_MH, head_VH, temperature, forbidden, (entropy, entropy_gradient), chunk_rows, chunk_vocab, cap)
    _check(hidden_MH, head_VH, targets_M, bias, plan)
    targets_M = to_device(targets_M, hidden_MH.device)
    logp_M, entropy_M = _Streaming.apply(hidden_MH, head_VH, bias, targets_M, plan)  # pyright: ignore[reportGeneralTypeIssues]
    return logp_M, entropy_M


@dataclass(frozen=True)
class HeadPlan:
    """Settings of a pass over the vocabulary: options of the head, chunk sizes and types."""

    temperature: float
    forbidden: tuple[int, ...]
    entropy: bool
    entropy_gradient: bool
    rows: int
    vocab: int
    compute: torch.dtype
    """Of the products."""
    exact: torch.dtype
    """Of everything else."""
    graph: bool
    """Whether a backward pass may follow."""
    cap: float | None


def plan_of(
    hidden: torch.Tensor,
    head: torch.Tensor,
    temperature: float,
    forbidden: tuple[int, ...],
    entropies: tuple[bool, bool],
    rows: int,
    vocab: int,
    cap: float | None,
) -> HeadPlan:
    """Check numbers and types, and choose the types of the work.

    Args:
        entropies: whether entropies are wanted, and whether with a gradient.
        rows: of one chunk.
        vocab: columns of one chunk.
        cap: soft cap of the logits; None: none.

    Raises:
        ValueError: one of them cannot be.
    """
    if not temperature > 0:
        raise ValueError(f"temperature {temperature}: must be positive")
    if cap is not None and not cap > 0:
        raise ValueError(f"soft cap {cap}: must be positive")
    if rows < 1 or vocab < 1:
        raise ValueError(f"chunk_rows {rows}, chunk_vocab {vocab}: must be at least 1")
    if entropies == (False, True):
        raise ValueError("entropy_gradient needs the entropy: do not switch `entropy` off")
    where = hidden.device.type
    cast = torch.is_autocast_enabled(where) and torch.float64 not in (hidden.dtype, head.dtype)
    if not cast and hidden.dtype != head.dtype:
        raise ValueError(f"hidden is {hidden.dtype} and head is {head.dtype}: cast one of them, or run under torch.autocast")
    compute = torch.get_autocast_dtype(where) if cast else hidden.dtype
    exact = torch.float64 if compute == torch.float64 else torch.float32
    return HeadPlan(temperature, tuple(sorted(set(forbidden))), *entropies, rows, vocab, compute, exact, torch.is_grad_enabled(), cap)


def _check(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, bias: torch.Tensor | None, plan: HeadPlan) -> None:
    if hidden.ndim != 2 or head.ndim != 2 or hidden.shape[1] != head.shape[1]:
        raise ValueError(f"hidden {tuple(hidden.shape)} and head {tuple(head.shape)}: expected [M, H] and [V, H]")
    size = head.shape[0]
    if targets.shape != hidden.shape[:1] or targets.dtype != torch.int64:
        raise ValueError(f"targets {tuple(targets.shape)} {targets.dtype}: expected one int64 id for each of {hidden.shape[0]} rows")
    if bias is not None and bias.shape != (size,):
        raise ValueError(f"bias {tuple(bias.shape)}: expected [{size}]")
    if plan.forbidden and not 0 <= plan.forbidden[0] <= plan.forbidden[-1] < size:
        raise ValueError(f"forbidden ids {plan.forbidden}: outside the vocabulary of {size}")
    if len(plan.forbidden) == size:
        raise ValueError(f"all {size} ids are forbidden: nothing is left to sample")
    if targets.numel():
        low, high = (int(v) for v in torch.stack(torch.aminmax(targets)).tolist())
        if low < 0 or high >= size:
            raise ValueError(f"target ids {low} to {high}: outside the vocabulary of {size}")


def ranges(size: int, step: int) -> Iterator[slice]:
    """Yield slices of at most `step` that cover `size`."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def forbidden_in(columns: slice, plan: HeadPlan, device: torch.device) -> torch.Tensor | None:
    """Find the forbidden ids of one vocabulary chunk.

    Returns:
        [k] int64, counted from the start of the chunk; None where it has none.
    """
    inside = [i - columns.start for i in plan.forbidden if columns.start <= i < columns.stop]
    return to_device(torch.tensor(inside), device) if inside else None


def chunk_logits(hidden_RH: torch.Tensor, head_CH: torch.Tensor, bias_C: torch.Tensor | None, banned: torch.Tensor | None, plan: HeadPlan):
    """Compute one chunk of z, [R, C], a fresh tensor."""
    z_RC = (hidden_RH @ head_CH.T).to(plan.exact)
    if bias_C is not None:  # a bias of -inf forbids a token as `banned` does
        z_RC.add_(bias_C.to(plan.exact)).clamp_(min=_LOW)
    if plan.cap is not None:
        z_RC.div_(plan.cap).tanh_().mul_(plan.cap)
    if plan.temperature != 1.0:
        z_RC.div_(plan.temperature)
    return z_RC if banned is None else z_RC.index_fill_(1, banned, _LOW)


def cap_slope(z_RC: torch.Tensor, plan: HeadPlan) -> torch.Tensor | None:
    """Differentiate the soft cap at one chunk of z.

    Returns:
        The factors of the gradients, [R, C], 0 for forbidden tokens, far below; None without a cap.
    """
    if plan.cap is None:
        return None
    # d/dl c tanh(l / c) = 1 - tanh^2, and z T / c is that tanh; forbidden tokens lie at _LOW and are cut to slope 0
    bent_RC = (z_RC * (plan.temperature / plan.cap)).clamp_(-1, 1)
    return bent_RC.square_().neg_().add_(1)


def _column(targets_R: torch.Tensor, columns: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """(column of the target in this chunk [R, 1], clamped; whether it is in this chunk [R])."""
    index = targets_R - columns.start
    width = columns.stop - columns.start
    return index.clamp(0, width - 1)[:, None], (index >= 0) & (index < width)


class _Running:
    """Per row: maximum m, s = sum exp(z - m), e = sum exp(z - m) (z - m), and the target's logit."""

    def __init__(self, count: int, plan: HeadPlan, device: torch.device):
        self.plan = plan
        self.m = torch.full((count,), _LOW, dtype=plan.exact, device=device)
        self.s, self.e, self.target = (torch.zeros_like(self.m) for _ in range(3))

    def add(self, z_RC: torch.Tensor, rows: slice, columns: slice, targets_R: torch.Tensor) -> torch.Tensor:
        """Take in one chunk, which is used up. Returns exp(z - m) of it."""
        index, inside = _column(targets_R, columns)
        self.target[rows] = torch.where(inside, z_RC.gather(1, index)[:, 0], self.target[rows])
        # with m' = max(m, max z): s' = s exp(m - m') + sum exp(z - m'), and e' likewise, whose exponents shift by m - m' too
        old, s, e = self.m[rows], self.s[rows], self.e[rows]
        m = torch.maximum(old, z_RC.amax(1))
        z_RC.sub_(m[:, None])
        p_RC = z_RC.exp()
        shift = old - m
        scale = shift.exp()
        if self.plan.entropy:
            self.e[rows] = scale * (e + s * shift) + z_RC.mul_(p_RC).sum(1)
        self.s[rows] = scale * s + p_RC.sum(1)
        self.m[rows] = m
        return p_RC


class _Streaming(Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, hidden: torch.Tensor, head: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor, plan: HeadPlan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, size = hidden.shape[0], head.shape[0]
        state = _Running(count, plan, hidden.device)
        # all in one chunk, and a backward to come: its probabilities are kept, and need not be made again
        whole = plan.graph and not plan.entropy_gradient and any(ctx.needs_input_grad) and count <= plan.rows and size <= plan.vocab
        whole = whole and plan.cap is None  # whose slope is of logits
        kept: torch.Tensor | None = None
        with torch.autocast(hidden.device.type, enabled=False):  # casts are made here, chunk by chunk
            hidden_c = hidden.to(plan.compute)
            for columns in ranges(size, plan.vocab):  # outside, so that each part of the matrix is cast once
                head_c = head[columns].to(plan.compute)
                bias_c = None if bias is None else bias[columns]
                banned = forbidden_in(columns, plan, hidden.device)
                for rows in ranges(count, plan.rows):
                    p = state.add(chunk_logits(hidden_c[rows], head_c, bias_c, banned, plan), rows, columns, targets[rows])
                    kept = p if whole else None
                    del p  # not one chunk more than needed while the next is made
        log_s = state.s.log()
        logp = state.target - state.m - log_s
        # H = log Z - sum p z with z counted from m: log s - e / s
        entropy = log_s - state.e / state.s if plan.entropy else torch.full_like(logp, float("nan"))
        allowed = torch.ones_like(targets, dtype=torch.bool)
        if plan.forbidden:
            allowed = ~torch.isin(targets, to_device(torch.tensor(plan.forbidden), targets.device))
            logp = logp.masked_fill(~allowed, float("-inf"))
        if kept is not None:
            kept.div_(state.s[:, None])  # exp(z - m) / s: probabilities
        ctx.plan = plan
        ctx.save_for_backward(hidden, head, bias, targets, state.m + log_s, allowed, kept, entropy if plan.entropy_gradient else None)
        if not plan.entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: torch.Tensor, grad_entropy: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, head, bias, targets, log_z, allowed, kept, entropy = ctx.saved_tensors
        plan: HeadPlan = ctx.plan
        to_hidden, to_head, to_bias = ctx.needs_input_grad[:3]
        d_hidden = torch.zeros_like(hidden, dtype=plan.exact) if to_hidden else None
        d_head = torch.zeros_like(head) if to_head else None
        d_bias = torch.zeros_like(bias) if to_bias else None
        grad = grad_logp.to(plan.exact) / plan.temperature  # dz/dl = 1 / T, once for all chunks
        with torch.autocast(hidden.device.type, enabled=False):
            hidden_c = hidden.to(plan.compute)
            for columns in ranges(head.shape[0], plan.vocab):
                head_c = head[columns].to(plan.compute)
                bias_c = None if bias is None else bias[columns]
                banned = forbidden_in(columns, plan, hidden.device)
                part_head = None if d_head is None else _part(d_head, columns, plan.exact)
                part_bias = None if d_bias is None else _part(d_bias, columns, plan.exact)
                for rows in ranges(hidden.shape[0], plan.rows):
                    slope: torch.Tensor | None = None
                    if entropy is not None:
                        z = chunk_logits(hidden_c[rows], head_c, bias_c, banned, plan)
                        slope = cap_slope(z, plan)
                        dz = _with_entropy(z.sub_(log_z[rows, None]), grad[rows], grad_entropy[rows] / plan.temperature, entropy[rows])
                    elif kept is None:  # -g p; the target's own part is added below
                        z = chunk_logits(hidden_c[rows], head_c, bias_c, banned, plan)
                        slope = cap_slope(z, plan)
                        dz = z.sub_(log_z[rows, None]).exp_().mul_(-grad[rows, None])
                    else:
                        dz = kept * -grad[rows, None]
                    _add_target(dz, grad[rows], targets[rows], allowed[rows], columns)
                    if slope is not None:  # through the soft cap, the target's part as well
                        dz.mul_(slope)
                    if part_bias is not None:
                        part_bias += dz.sum(0)
                    dz_c = dz.to(plan.compute)
                    if d_hidden is not None:  # dh = dz W and dW = dz^T h, added up over the chunks
                        accumulate(d_hidden[rows], dz_c, head_c)
                    if part_head is not None:
                        accumulate(part_head, dz_c.T, hidden_c[rows])
                _store(d_head, part_head, columns)
                _store(d_bias, part_bias, columns)
        return d_hidden.to(hidden.dtype) if d_hidden is not None else None, d_head, d_bias, None, None


def _with_entropy(logp_RC: torch.Tensor, grad_R: torch.Tensor, entropy_grad_R: torch.Tensor, entropy_R: torch.Tensor) -> torch.Tensor:
    """-p (g + g_H (log p + H)) of one chunk: all but the target's own part. A forbidden token has p exactly 0."""
    factor_RC = (logp_RC + entropy_R[:, None]).mul_(entropy_grad_R.to(logp_RC.dtype)[:, None]).add_(grad_R[:, None])
    return factor_RC.mul_(logp_RC.exp()).neg_()


def _add_target(dz_RC: torch.Tensor, grad_R: torch.Tensor, targets_R: torch.Tensor, allowed_R: torch.Tensor, columns: slice) -> None:
    """dz += g 1[v = t], where the target is in this chunk and not forbidden. One cell per row, so `scatter_` is deterministic."""
    index, inside = _column(targets_R, columns)
    here = torch.where(inside & allowed_R, grad_R, 0.0)
    dz_RC.scatter_(1, index, dz_RC.gather(1, index) + here[:, None])


def _part(total: torch.Tensor, columns: slice, exact: torch.dtype) -> torch.Tensor:
    """Choose where to add up one vocabulary chunk of a gradient: in place where its type is exact enough, else aside (see `_store`)."""
    view = total[columns]
    return view if total.dtype == exact else torch.zeros_like(view, dtype=exact)


def _store(total: torch.Tensor | None, part: torch.Tensor | None, columns: slice) -> None:
    if total is not None and part is not None and total.dtype != part.dtype:
        total[columns] = part


def accumulate(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """total += a @ b."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)
