"""Reverse divergence over the ids that the student finds likeliest at each token, the rest of the vocabulary in one bucket.

With q the student, p the teacher, S the k likeliest ids of the student, and q_r, p_r what the two give to all other ids together:

    D = sum_{v in S} q_v log(q_v / p_v) + q_r log(q_r / p_r)

This is KL(q || p) of distributions in which the other ids are one, so it is never negative, never above the whole divergence, and equal to
it where S is the vocabulary: what differs among the other ids is not seen. A teacher has to say no more than k numbers per token, so it may
be on a server. By the student's logits z, with r_b = log(q_b / p_b) of the bucket that v is in:

    dD/dz_v = q_v (r_b - D)

The ids are the student's (as asked for in verl#7806), where a top-k of the teacher lets a reverse divergence move mass out of it unseen.
The output matrix is walked in chunks, as in `divergence`. Ours: p_r is what the k log-probs leave, and at least `FLOOR`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from vlmrl.extras.distill.divergence import Outputs, Part, chunks_of, pulled_back
from vlmrl.policy.head import CHUNK_ROWS, CHUNK_VOCAB, HeadPlan, plan_of

FLOOR = 1e-6
"""Least mass of a teacher's other ids: k log-probs in float32 do not tell a smaller one."""
NOTHING = -1e6
"""Log of the mass of other ids below which there are none: forbidden ones lie far lower."""


def top_ids(outputs: Outputs, k: int, *, ids: int, temperature: float = 1.0, forbidden: tuple[int, ...] = (), **chunks: int) -> Tensor:
    """Find the likeliest ids of each token, of those that may be drawn.

    Args:
        ids: only those below count: an output matrix may have more rows than its tokenizer has ids.
        chunks: `chunk_rows` and `chunk_vocab`.

    Returns:
        [M, k], the likeliest first.

    Raises:
        ValueError: there are not so many.
    """
    plan = _plan(outputs, temperature, forbidden, **chunks)
    size = min(ids, len(outputs.head_VH))
    allowed = size - sum(i < size for i in plan.forbidden)
    if not 0 < k <= allowed:
        raise ValueError(f"k is {k}, and there are {allowed} ids that may be drawn")
    best_MK = torch.full((len(outputs.hidden_MH), k), -torch.inf, dtype=plan.exact, device=outputs.hidden_MH.device)
    found_MK = torch.zeros_like(best_MK, dtype=torch.int64)
    with torch.no_grad(), torch.autocast(outputs.hidden_MH.device.type, enabled=False):
        for rows, columns, z_RC in chunks_of(outputs, plan):
            width = min(columns.stop, size) - columns.start
            if width <= 0:
                continue
            here_RC = torch.arange(columns.start, columns.start + width, device=z_RC.device).expand(len(z_RC), -1)
            best_MK[rows], order = torch.cat([best_MK[rows], z_RC[:, :width]], 1).topk(k, 1)
            found_MK[rows] = torch.cat([found_MK[rows], here_RC], 1).gather(1, order)
    return found_MK


def chosen_logprobs(
    outputs: Outputs, ids_MK: Tensor, *, temperature: float = 1.0, forbidden: tuple[int, ...] = (), **chunks: int
) -> Tensor:
    """Compute the log-probs of given ids of each token, without a gradient.

    Returns:
        [M, K] in nats, float32, or float64 for float64 input.
    """
    plan = _plan(outputs, temperature, forbidden, **chunks)
    with torch.no_grad():
        chosen_MK, rest_M = _walked(outputs, plan, ids_MK)
        return chosen_MK - torch.logaddexp(chosen_MK.logsumexp(1), rest_M)[:, None]


def chosen_reverse_kl(
    student: Outputs, ids_MK: Tensor, teacher_MK: Tensor, *, temperature: float = 1.0, forbidden: tuple[int, ...] = (), **chunks: int
) -> Tensor:
    """Compute the divergence of each token over given ids and the rest in one bucket.

    Args:
        student: gradients reach its hidden states, head and bias.
        ids_MK: different ids of each token.
        teacher_MK: their log-probs under the teacher. No gradient.
        chunks: `chunk_rows` and `chunk_vocab`.

    Returns:
        [M] in nats, float32, or float64 for float64 input.

    Raises:
        ValueError: shapes do not match, or what `policy.head` refuses.
    """
    if ids_MK.shape != teacher_MK.shape or len(ids_MK) != len(student.hidden_MH):
        raise ValueError(f"{tuple(ids_MK.shape)} ids, {tuple(teacher_MK.shape)} log-probs and {len(student.hidden_MH)} tokens")
    plan = _plan(student, temperature, forbidden, **chunks)
    return _Chosen.apply(student.hidden_MH, student.head_VH, student.bias_V, (ids_MK, teacher_MK, plan))  # pyright: ignore[reportReturnType]


def _plan(outputs: Outputs, temperature: float, forbidden: tuple[int, ...], chunk_rows: int = CHUNK_ROWS, chunk_vocab: int = CHUNK_VOCAB):
    allowed = tuple(i for i in forbidden if i < len(outputs.head_VH))
    return plan_of(outputs.hidden_MH, outputs.head_VH, temperature, allowed, (False, False), chunk_rows, chunk_vocab, outputs.cap)


def _places(ids_RK: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Give columns of ids within a chunk, clamped, and whether they are in it, [R, K]."""
    index_RK, width = ids_RK - columns.start, columns.stop - columns.start
    return index_RK.clamp(0, width - 1), (index_RK >= 0) & (index_RK < width)


def _walked(outputs: Outputs, plan: HeadPlan, ids_MK: Tensor) -> tuple[Tensor, Tensor]:
    """Give z of the chosen ids [M, K], and the log of the sum of exp(z) over all others [M]."""
    chosen_MK = torch.full(ids_MK.shape, -torch.inf, dtype=plan.exact, device=outputs.hidden_MH.device)
    rest_M = chosen_MK.new_full((len(ids_MK),), -torch.inf)
    with torch.autocast(outputs.hidden_MH.device.type, enabled=False):
        for rows, columns, z_RC in chunks_of(outputs, plan):
            index_RK, inside_RK = _places(ids_MK[rows], columns)
            z_RK = z_RC.gather(1, index_RK)
            chosen_MK[rows] = torch.where(inside_RK, z_RK, chosen_MK[rows])
            # an id elsewhere is clamped to a column that may be anybody's: the least of all places takes -inf where it is one of ours
            z_RC.scatter_reduce_(1, index_RK, torch.where(inside_RK, -torch.inf, torch.inf).to(z_RC.dtype), "amin")
            rest_M[rows] = torch.logaddexp(rest_M[rows], z_RC.logsumexp(1))
    return chosen_MK, rest_M


class _Chosen(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, bias: Tensor | None, asked: tuple[Tensor, Tensor, HeadPlan]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ids_MK, teacher_MK, plan = asked
        outputs = Outputs(hidden_MH=hidden, head_VH=head, bias_V=bias, cap=plan.cap)
        chosen_MK, rest_M = _walked(outputs, plan, ids_MK)
        z_M = torch.logaddexp(chosen_MK.logsumexp(1), rest_M)
        logq_MK, logq_r = chosen_MK - z_M[:, None], rest_M - z_M
        p_r = (1 - teacher_MK.double().exp().sum(1)).clamp(min=FLOOR)
        # where nothing is left, its part is 0, and so is its derivative
        ratio_r = torch.where(logq_r > NOTHING, logq_r - p_r.log().to(plan.exact), 0.0)
        ratio_MK = logq_MK - teacher_MK.to(plan.exact)
        value_M = (logq_MK.exp() * ratio_MK).sum(1) + logq_r.exp() * ratio_r
        ctx.plan = plan
        ctx.save_for_backward(hidden, head, bias, ids_MK, z_M, logq_MK.exp() * (ratio_MK - ratio_r[:, None]), ratio_r - value_M)
        return value_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, head, bias, ids_MK, z_M, beside_MK, slope_M = ctx.saved_tensors
        plan: HeadPlan = ctx.plan
        outputs = Outputs(hidden_MH=hidden, head_VH=head, bias_V=bias, cap=plan.cap)

        def slopes() -> Iterator[Part]:
            for rows, columns, z_RC in chunks_of(outputs, plan):
                # q_v (r_b - D), for all ids as if they were in the bucket of the rest, and for the chosen ones what they differ by
                dz_RC = (z_RC - z_M[rows, None]).exp() * slope_M[rows, None]
                index_RK, inside_RK = _places(ids_MK[rows], columns)
                yield rows, columns, z_RC, dz_RC.scatter_add_(1, index_RK, torch.where(inside_RK, beside_MK[rows], 0.0))

        return *pulled_back(outputs, plan, grad, slopes(), ctx.needs_input_grad), None
