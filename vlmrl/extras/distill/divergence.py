"""Generalised Jensen-Shannon divergence of two models' next tokens, without logits of [M, V] in memory. arXiv:2306.13649, equation 1.

With p the teacher, q the student and m = beta p + (1 - beta) q, per token:

    D = beta KL(p || m) + (1 - beta) KL(q || m)        0 < beta < 1
    D = KL(p || q)    beta = 0, the forward divergence
    D = KL(q || p)    beta = 1, the reverse one

By the student's logits z (the teacher has no gradient):

    dD/dz = (1 - beta) q (log(q / m) - KL(q || m))     beta = 0: q - p;  beta = 1: q (log(q / p) - KL(q || p))

Both output matrices are walked in chunks of rows and of the vocabulary, as in `policy.head`: once for log Z of each, once for the sums. The
backward pass makes each chunk again. Temperature and forbidden ids are those of the student's sampling, for both models.

Ours: output matrices of one tokenizer may be padded to different sizes; the ids that only one of them has are left out on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from vlmrl.policy.head import CHUNK_ROWS, CHUNK_VOCAB, HeadPlan, accumulate, cap_slope, chunk_logits, forbidden_in, plan_of, ranges


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Hidden states of M tokens, with the output layer that makes their logits."""

    hidden_MH: Tensor
    head_VH: Tensor
    bias_V: Tensor | None = None
    cap: float | None = None
    """Soft cap of the logits; None: none."""


@dataclass(frozen=True)
class _Sides:
    """What both passes go by, with the teacher's tensors."""

    teacher: Outputs
    beta: float
    plans: tuple[HeadPlan, HeadPlan]
    """Of the student and of the teacher."""


def generalised_jsd(
    student: Outputs,
    teacher: Outputs,
    *,
    beta: float,
    temperature: float,
    forbidden: tuple[int, ...] = (),
    chunk_rows: int = CHUNK_ROWS,
    chunk_vocab: int = CHUNK_VOCAB,
) -> Tensor:
    """Compute the divergence of each token's distributions, over all ids that may be drawn.

    Args:
        student: gradients reach its hidden states, head and bias.
        teacher: of the same tokens; hidden states may be of another size. No gradient.
        beta: 0 forward, 1 reverse divergence, between them the mixture.

    Returns:
        [M] in nats, float32, or float64 for float64 input.

    Raises:
        ValueError: beta outside [0, 1], different numbers of tokens, or what `policy.head` refuses.
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta is {beta}: must be in [0, 1]")
    if len(student.hidden_MH) != len(teacher.hidden_MH):
        raise ValueError(f"{len(student.hidden_MH)} tokens of the student and {len(teacher.hidden_MH)} of the teacher")
    size = min(len(student.head_VH), len(teacher.head_VH))
    allowed = tuple(i for i in forbidden if i < size)
    if len(set(allowed)) == size:
        raise ValueError(f"all {size} ids are forbidden: nothing is left to compare")
    student, teacher = _cut(student, size), _cut(teacher, size)
    plans = [
        plan_of(one.hidden_MH, one.head_VH, temperature, allowed, (False, False), chunk_rows, chunk_vocab, one.cap)
        for one in (student, teacher)
    ]
    sides = _Sides(teacher, beta, (plans[0], plans[1]))
    return _Divergence.apply(student.hidden_MH, student.head_VH, student.bias_V, sides)  # pyright: ignore[reportReturnType]


def _cut(outputs: Outputs, size: int) -> Outputs:
    bias_V = None if outputs.bias_V is None else outputs.bias_V[:size]
    return replace(outputs, head_VH=outputs.head_VH[:size], bias_V=bias_V)


def chunks_of(outputs: Outputs, plan: HeadPlan) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield (rows, columns, z of them [R, C]), the vocabulary outside so that each part of the matrix is cast once."""
    hidden_c = outputs.hidden_MH.to(plan.compute)
    for columns in ranges(len(outputs.head_VH), plan.vocab):
        head_c = outputs.head_VH[columns].to(plan.compute)
        bias_C = None if outputs.bias_V is None else outputs.bias_V[columns]
        banned = forbidden_in(columns, plan, hidden_c.device)
        for rows in ranges(len(hidden_c), plan.rows):
            yield rows, columns, chunk_logits(hidden_c[rows], head_c, bias_C, banned, plan)


def _log_z(outputs: Outputs, plan: HeadPlan) -> Tensor:
    """Log of the sum of exp(z) over the vocabulary, [M]."""
    out_M = torch.full((len(outputs.hidden_MH),), float("-inf"), dtype=plan.exact, device=outputs.hidden_MH.device)
    for rows, _, z_RC in chunks_of(outputs, plan):
        out_M[rows] = torch.logaddexp(out_M[rows], z_RC.logsumexp(1))
    return out_M


def _log_mixture(logq: Tensor, logp: Tensor, beta: float) -> Tensor:
    """Log of beta p + (1 - beta) q; of the other side where beta is 0 (then p is compared with q) or 1."""
    if beta in (0, 1):
        return logq if beta == 0 else logp
    return torch.logaddexp(logp + log(beta), logq + log(1 - beta))


def _pairs(student: Outputs, sides: _Sides, z_q: Tensor, z_p: Tensor) -> Iterator[tuple[slice, slice, Tensor, Tensor, Tensor]]:
    """Yield (rows, columns, student's z, log q, log p) of each chunk."""
    both = zip(chunks_of(student, sides.plans[0]), chunks_of(sides.teacher, sides.plans[1]), strict=True)
    for (rows, columns, z_RC), (_, _, other_RC) in both:
        yield rows, columns, z_RC, z_RC - z_q[rows, None], other_RC.to(z_RC.dtype) - z_p[rows, None]


class _Divergence(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, bias: Tensor | None, sides: _Sides) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        beta, (plan, other) = sides.beta, sides.plans
        student = Outputs(hidden_MH=hidden, head_VH=head, bias_V=bias, cap=plan.cap)
        with torch.autocast(hidden.device.type, enabled=False):  # casts are made chunk by chunk
            z_q, z_p = _log_z(student, plan), _log_z(sides.teacher, other).to(plan.exact)
            forward, reverse = torch.zeros_like(z_q), torch.zeros_like(z_q)  # KL(p || m), KL(q || m)
            for rows, _, _, logq, logp in _pairs(student, sides, z_q, z_p):
                logm = _log_mixture(logq, logp, beta)
                # a forbidden id lies far below on all three: exp is exactly 0, and so is its part
                if beta < 1:
                    forward[rows] += (logp.exp() * (logp - logm)).sum(1)
                if beta > 0:
                    reverse[rows] += (logq.exp() * (logq - logm)).sum(1)
        ctx.sides = sides
        ctx.save_for_backward(hidden, head, bias, z_q, z_p, reverse)
        if beta in (0, 1):
            return forward if beta == 0 else reverse
        return beta * forward + (1 - beta) * reverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, head, bias, z_q, z_p, reverse = ctx.saved_tensors
        sides: _Sides = ctx.sides
        beta, plan = sides.beta, sides.plans[0]
        student = Outputs(hidden_MH=hidden, head_VH=head, bias_V=bias, cap=plan.cap)
        scale = grad * (1 - beta if 0 < beta < 1 else 1)

        def slopes() -> Iterator[Part]:
            for rows, columns, z, logq, logp in _pairs(student, sides, z_q, z_p):
                if beta == 0:
                    yield rows, columns, z, logq.exp() - logp.exp()
                else:
                    yield rows, columns, z, logq.exp() * (logq - _log_mixture(logq, logp, beta) - reverse[rows, None])

        return *pulled_back(student, plan, scale, slopes(), ctx.needs_input_grad), None


Part = tuple[slice, slice, Tensor, Tensor]
"""Rows and columns of a chunk, its z and the derivative of something by it, [R, C]."""


def pulled_back(
    outputs: Outputs, plan: HeadPlan, grad_M: Tensor, parts: Iterator[Part], needed: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Carry derivatives by z back to hidden states, matrix and bias.

    Args:
        grad_M: of each token's value, which `parts` are the derivatives of.
        needed: which of the three have a gradient.

    Returns:
        The three gradients; None where none is needed.
    """
    hidden, head = outputs.hidden_MH, outputs.head_VH
    given = (hidden, head, outputs.bias_V)
    d_hidden, d_head, d_bias = (
        torch.zeros_like(value, dtype=plan.exact) if value is not None and wanted else None
        for value, wanted in zip(given, needed, strict=False)
    )
    scale = grad_M.to(plan.exact) / plan.temperature  # dz/dl = 1 / T
    with torch.autocast(hidden.device.type, enabled=False):
        hidden_c = hidden.to(plan.compute)
        for rows, columns, z, dz in parts:
            dz.mul_(scale[rows, None])
            slope = cap_slope(z, plan)
            if slope is not None:
                dz.mul_(slope)
            if d_bias is not None:
                d_bias[columns] += dz.sum(0)
            dz_c = dz.to(plan.compute)  # products of the compute type, sums of the exact one, as in `policy.head`
            if d_hidden is not None:
                accumulate(d_hidden[rows], dz_c, head[columns].to(plan.compute))
            if d_head is not None:
                accumulate(d_head[columns], dz_c.T, hidden_c[rows])
    found = zip((d_hidden, d_head, d_bias), given, strict=True)
    return tuple(None if value is None or of is None else value.to(of.dtype) for value, of in found)
