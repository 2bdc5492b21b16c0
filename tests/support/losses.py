"""Inputs of policy losses for tests: rows of (ratio, advantage) tokens, and the coefficient c = -dL/dlogp."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from vlmrl.algo.inputs import LossInputs, LossOutput

Rows = Sequence[Sequence[tuple[float, float]]]


def tensor(rows: Sequence[Sequence[float]], fill: float = float("nan")) -> torch.Tensor:
    """float64 [B, T], short rows padded with NaN, so that a loss that reads the padding shows."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=torch.float64)


def loss_inputs(rows: Rows, logp: Sequence[Sequence[float]] | None = None, **more: torch.Tensor | None) -> LossInputs:
    """Rows of (ratio, advantage). `logp` are the current log-probs, -1 by default; old ones follow from the ratio. `more`: other
    fields, and what providers give."""
    current = tensor([[-1.0] * len(row) for row in rows] if logp is None else logp).requires_grad_()
    mask = tensor([[1.0] * len(row) for row in rows], 0.0) > 0
    own = {one.name for one in dataclasses.fields(LossInputs)}
    return LossInputs(
        logp_BT=current,
        logp_old_BT=current.detach() - tensor([[math.log(r) for r, _ in row] for row in rows]),
        logp_ref_BT=None,
        adv_BT=tensor([[a for _, a in row] for row in rows]),
        mask_BT=mask,
        group_B=torch.zeros(len(rows), dtype=torch.int64),
        provided={name: value for name, value in more.items() if name not in own and value is not None},
        **{name: value for name, value in more.items() if name in own},  # pyright: ignore[reportArgumentType]
    )


def total(output: LossOutput, x: LossInputs) -> torch.Tensor:
    """Sum of the token losses over the mask."""
    return torch.where(x.mask_BT, output.loss_BT, torch.zeros_like(output.loss_BT)).sum()


def coefficients(loss: Callable[..., LossOutput], x: LossInputs, **arguments: object) -> list[list[float]]:
    """c of every masked token, row by row."""
    (grad,) = torch.autograd.grad(total(loss(x, **arguments), x), x.logp_BT)
    return [(-row[keep]).tolist() for row, keep in zip(grad, x.mask_BT, strict=True)]


def metric(loss: Callable[..., LossOutput], x: LossInputs, name: str, **arguments: object) -> tuple[float, float]:
    """(sum, count) of one metric."""
    number, count = loss(x, **arguments).metrics[name]
    return float(number), float(count)
