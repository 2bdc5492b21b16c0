"""What a micro-batch contributes to the gradient of a step: a token loss, or its share of a loss that compares rollouts.

An objective is called once per micro-batch and returns a scalar to differentiate; the sum over all micro-batches and ranks has the
gradient of the whole step, whatever the split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vlmrl.algo.group_loss.two_pass import PassWeights, row_terms, surrogate
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.train import dist

Loss = Callable[[LossInputs], LossOutput]
Reducer = Callable[[torch.Tensor], Any]
Sums = dict[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class MicroSlices:
    """The micro-batch's slices of what belongs to rows and not to the loss."""

    place_B: torch.Tensor
    """Place of each row in the minibatch."""
    counted_BT: torch.Tensor
    """Tokens that enter logged statistics."""
    sampled_BT: torch.Tensor | None
    """Log-probs that the sampler reported; NaN where nothing was sampled."""


class Objective(Protocol):
    """See the module docstring."""

    def total(self, mask_NT: torch.Tensor) -> float:
        """Denominator of the whole step over all ranks, from this rank's mask. Called on every rank."""
        ...

    def __call__(self, x: LossInputs, slices: MicroSlices, total: float) -> tuple[torch.Tensor, Sums]:
        """(scalar to differentiate, metrics as sums and counts)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Auxiliary:
    """A regulariser beside the policy's loss: added per token with its weight, or as the plain sum of its values."""

    name: str
    loss: Loss
    weight: float = 1.0
    plain_sum: bool = False
    """Whether it has denominators of its own, so that nothing divides it again."""


@dataclass(frozen=True, kw_only=True)
class TokenObjective:
    """`reduce(importance weight * loss + beta * divergence) + sum over the auxiliary losses of weight * reduce(loss)`."""

    loss: Loss
    reducer: Reducer
    divergence: Callable[..., torch.Tensor] | None = None
    divergence_needs_old: bool = False
    beta: float = 0.0
    importance_correction: Callable[..., tuple[torch.Tensor, Mapping[str, tuple[torch.Tensor, torch.Tensor]]]] | None = None
    auxiliary: Sequence[Auxiliary] = ()

    def total(self, mask_NT: torch.Tensor) -> float:
        count = self.reducer(mask_NT).count if len(mask_NT) else torch.zeros((), dtype=torch.float64)
        return dist.sum_(torch.as_tensor(count, dtype=torch.float64).clone()).clamp(min=1.0).item()

    def __call__(self, x: LossInputs, slices: MicroSlices, total: float) -> tuple[torch.Tensor, Sums]:
        output = self.loss(x)
        value_BT, metrics = output.loss_BT, dict(output.metrics)
        sums: Sums = {}
        if self.importance_correction is not None and slices.sampled_BT is not None:
            weight_BT, more = self.importance_correction(x.logp_old_BT, slices.sampled_BT, x.mask_BT)
            value_BT = value_BT * weight_BT
            metrics |= more
        if self.divergence is not None and x.logp_ref_BT is not None:
            old = (x.logp_old_BT,) if self.divergence_needs_old else ()
            kl_BT = self.divergence(x.logp_BT, x.logp_ref_BT, *old)
            value_BT = value_BT + self.beta * kl_BT
            sums["kl"] = masked_sum(kl_BT, slices.counted_BT)
        weight_BT = self.reducer(x.mask_BT).weight_BT
        scalar = torch.where(x.mask_BT, value_BT * weight_BT, torch.zeros_like(value_BT)).sum() / total
        for one in self.auxiliary:
            output = one.loss(x)
            metrics |= {f"auxiliary/{one.name}/{key}": value for key, value in output.metrics.items()}
            part_BT = torch.where(x.mask_BT, output.loss_BT, torch.zeros_like(output.loss_BT))
            scalar = scalar + one.weight * (part_BT.sum() if one.plain_sum else (part_BT * weight_BT).sum() / total)
            if not one.plain_sum:
                sums[f"auxiliary/{one.name}"] = masked_sum(output.loss_BT, slices.counted_BT)
        sums |= {name: (float(number), float(of)) for name, (number, of) in metrics.items()}
        return scalar, sums


@dataclass(frozen=True, kw_only=True)
class GroupObjective:
    """A loss that compares rollouts, in its second pass: the weights of the first are those of this rank's rows."""

    weights: PassWeights
    score: str
    divergence: str | None

    def total(self, mask_NT: torch.Tensor) -> float:
        return 1.0

    def __call__(self, x: LossInputs, slices: MicroSlices, total: float) -> tuple[torch.Tensor, Sums]:
        device = x.logp_BT.device
        terms = row_terms(x, score=self.score, divergence=self.divergence)
        of_kl = None if self.weights.kl_N is None else self.weights.kl_N[slices.place_B].to(device)
        return surrogate(terms, self.weights.score_N[slices.place_B].to(device), of_kl), {}


def masked_sum(value_BT: torch.Tensor, mask_BT: torch.Tensor) -> tuple[float, float]:
    """(sum, count) over a mask, without gradient."""
    return float(torch.where(mask_BT, value_BT.detach(), torch.zeros_like(value_BT)).sum()), float(mask_BT.sum())
