"""Compute quantities per token from the logits that the fused pass over the vocabulary does not keep (`policy.head`).

A few rows at a time get their whole row of logits, [R, V], so that a quantity is a plain function of a distribution and may sort or
compare. No more numbers are in memory at once than in one chunk of the fused pass. The backward pass makes the rows again and asks
autograd for what stands behind them. Temperature, bias, soft cap and forbidden ids are those of the log-probs.

A quantity that is no function of these log-probs alone computes itself from the hidden states (`HeadStat`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from vlmrl.policy.head import CHUNK_ROWS, CHUNK_VOCAB, HeadPlan, TokenStat, accumulate, cap_slope, chunk_logits, plan_of, ranges
from vlmrl.policy.pack import to_device


def _of_log_probs(logp_MV: Tensor) -> Tensor:
    raise TypeError("this quantity is computed from hidden states, not from log-probs")


@dataclass(frozen=True, kw_only=True)
class HeadStat(TokenStat):
    """A quantity per token that is computed from hidden states and output matrix as they are. `of_rows` says for which rows."""

    function: Callable[[Tensor], Tensor] = _of_log_probs

    def at(self, hidden_MH: Tensor, head_VH: Tensor, **how: Any) -> Tensor:
        """Compute it for the scored tokens, row after row.

        Args:
            how: `temperature`, `forbidden`, `bias` and `cap`, as `token_stats` takes them.

        Returns:
            [M].
        """
        raise NotImplementedError


def token_stats(
    hidden_MH: Tensor,
    head_VH: Tensor,
    stats: Mapping[str, TokenStat],
    *,
    temperature: float,
    forbidden: tuple[int, ...],
    bias: Tensor | None = None,
    cap: float | None = None,
    block: int = CHUNK_ROWS * CHUNK_VOCAB,
) -> tuple[Tensor, ...]:
    """Compute quantities of the logits that log-probs are made from. `block`: how many logits are made at once; at least a row.

    Returns:
        Each of the `stats` in their order, [M], float32 or float64 as log-probs are; with gradient where it says so.

    Raises:
        ValueError: a function does not give one number per row, or is asked for a gradient and has none.
    """
    rows = max(1, block // head_VH.shape[0])
    plan = plan_of(hidden_MH, head_VH, temperature, forbidden, (False, False), rows, CHUNK_VOCAB, cap)
    how: dict[str, Any] = {"temperature": temperature, "forbidden": forbidden, "bias": bias, "cap": cap}
    found = {name: stat.at(hidden_MH, head_VH, **how) for name, stat in stats.items() if isinstance(stat, HeadStat)}
    of_logits = {name: stat for name, stat in stats.items() if name not in found}
    if of_logits:
        values: Any = _TokenStats.apply(hidden_MH, head_VH, bias, of_logits, plan)
        found |= dict(zip(of_logits, values, strict=True))
    return tuple(found[name] for name in stats)


def stats_of(z_MV: Tensor, stats: Mapping[str, TokenStat], forbidden: tuple[int, ...]) -> list[Tensor]:
    """Compute quantities from whole rows of logits.

    Returns:
        Each of the `stats` in their order, [M].

    Raises:
        ValueError: a function does not give one number per row.
    """
    if forbidden:
        allowed_V = torch.ones(z_MV.shape[1], dtype=torch.bool)
        # taken out and not set to -inf, which a function like p log p would make NaN of
        allowed_V[list(forbidden)] = False
        z_MV = z_MV.index_select(1, to_device(allowed_V.nonzero()[:, 0], z_MV.device))
    logp_MV = z_MV.log_softmax(1)
    out: list[Tensor] = []
    for name, stat in stats.items():
        value = stat.function(logp_MV)
        if value.shape != logp_MV.shape[:1]:
            raise ValueError(f"'{name}': its function gave {tuple(value.shape)} for {len(logp_MV)} tokens; it must give one number each")
        out.append(value.to(logp_MV.dtype))
    return out


def _rows(hidden_RH: Tensor, head_VH: Tensor, bias_V: Tensor | None, plan: HeadPlan) -> Tensor:
    """Compute whole rows of z, [R, V], a fresh tensor."""
    z_RV = torch.empty(len(hidden_RH), len(head_VH), dtype=plan.exact, device=hidden_RH.device)
    for columns in ranges(len(head_VH), plan.vocab):
        bias_C = None if bias_V is None else bias_V[columns]
        z_RV[:, columns] = chunk_logits(hidden_RH, head_VH[columns].to(plan.compute), bias_C, None, plan)
    return z_RV


class _TokenStats(Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, hidden: Tensor, head: Tensor, bias: Tensor | None, stats: Mapping[str, TokenStat], plan: HeadPlan
    ) -> tuple[Tensor, ...]:
        out = [torch.empty(len(hidden), dtype=plan.exact, device=hidden.device) for _ in stats]
        with torch.autocast(hidden.device.type, enabled=False):
            hidden_c = hidden.to(plan.compute)
            for rows in ranges(len(hidden), plan.rows):
                found = stats_of(_rows(hidden_c[rows], head, bias, plan), stats, plan.forbidden)
                for total, value in zip(out, found, strict=True):
                    total[rows] = value
        ctx.stats, ctx.plan = stats, plan
        ctx.save_for_backward(hidden, head, bias)
        ctx.mark_non_differentiable(*(value for value, stat in zip(out, stats.values(), strict=True) if not stat.gradient))
        return tuple(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, head, bias = ctx.saved_tensors
        plan: HeadPlan = ctx.plan
        asked = {name: (stat, grad) for (name, stat), grad in zip(ctx.stats.items(), grads, strict=True) if stat.gradient}
        d_hidden, d_head, d_bias = (
            torch.zeros_like(value, dtype=plan.exact) if needed else None
            for value, needed in zip((hidden, head, bias), ctx.needs_input_grad[:3], strict=True)
        )
        with torch.autocast(hidden.device.type, enabled=False):
            hidden_c = hidden.to(plan.compute)
            for rows in ranges(len(hidden), plan.rows):
                dz = _slopes(_rows(hidden_c[rows], head, bias, plan), {n: (stat, grad[rows]) for n, (stat, grad) in asked.items()}, plan)
                if d_bias is not None:
                    d_bias += dz.sum(0)
                dz = dz.to(plan.compute)  # products of the compute type, sums of the exact one, as in `policy.head`
                for columns in ranges(len(head), plan.vocab):
                    if d_hidden is not None:
                        accumulate(d_hidden[rows], dz[:, columns], head[columns].to(plan.compute))
                    if d_head is not None:
                        accumulate(d_head[columns], dz[:, columns].T, hidden_c[rows])
        found = zip((d_hidden, d_head, d_bias), (hidden, head, bias), strict=True)
        return *(None if value is None else value.to(of.dtype) for value, of in found), None, None


def _slopes(z_RV: Tensor, asked: Mapping[str, tuple[TokenStat, Tensor]], plan: HeadPlan) -> Tensor:
    """Differentiate what is asked for by the logits before temperature and soft cap, [R, V]; `asked` has the gradient of each, [R]."""
    slope_RV = cap_slope(z_RV, plan)  # before z wants gradients, so that it is not recorded
    z_RV.requires_grad_()
    with torch.enable_grad():
        values = stats_of(z_RV, {name: stat for name, (stat, _) in asked.items()}, plan.forbidden)
    for name, value in zip(asked, values, strict=True):
        if not value.requires_grad:
            raise ValueError(f"'{name}': its function has no gradient by the log-probs")
    (dz_RV,) = torch.autograd.grad(values, z_RV, [grad for _, grad in asked.values()])
    dz_RV = dz_RV / plan.temperature
    return dz_RV if slope_RV is None else dz_RV.mul_(slope_RV)
