"""What a minibatch minimises: the policy's loss with its regularisers, or a loss that compares rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vlmrl.algo.constraint.registry import merge
from vlmrl.algo.group_loss.two_pass import PassWeights, choice, pass_weights, row_terms, surrogate
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.defaults import DEFAULTS
from vlmrl.policy.pack import to_device
from vlmrl.train import dist
from vlmrl.train.stage.algorithm import Algorithm, Bound
from vlmrl.train.step import Learner, MicroSlices, Minibatch, Objective, Sums, masked_sum, scored_inputs

Loss = Callable[[LossInputs], LossOutput]
Reducer = Callable[[torch.Tensor], Any]


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
        # a copy, since `sum_` works in place; at least 1, for a step without a token to train
        return dist.sum_(torch.as_tensor(count, dtype=torch.float64).clone()).clamp(min=1.0).item()

    def __call__(self, x: LossInputs, slices: MicroSlices, total: float) -> tuple[torch.Tensor, Sums]:
        output = self.loss(x)
        value_BT, metrics = output.loss_BT, dict(output.metrics)
        sums: Sums = {}
        if self.importance_correction is not None and slices.sampled_BT is not None:
            # of the policy's term alone, so before the divergence is added
            weight_BT, more = self.importance_correction(x.logp_old_BT, slices.sampled_BT, x.mask_BT)
            value_BT = value_BT * weight_BT
            metrics |= more
        if self.divergence is not None and x.logp_ref_BT is not None:
            old = (x.logp_old_BT,) if self.divergence_needs_old else ()
            kl_BT = self.divergence(x.logp_BT, x.logp_ref_BT, *old)
            value_BT = value_BT + self.beta * kl_BT
            sums["kl"] = masked_sum(kl_BT, slices.counted_BT)
        weight_BT = self.reducer(x.mask_BT).weight_BT
        # [B, T] -> scalar; `where` and no product with the mask, in which NaN * 0 outside the responses would be NaN
        scalar = torch.where(x.mask_BT, value_BT * weight_BT, torch.zeros_like(value_BT)).sum() / total
        for one in self.auxiliary:
            output = one.loss(x)
            metrics |= {f"auxiliary/{one.name}/{key}": value for key, value in output.metrics.items()}
            part_BT = torch.where(x.mask_BT, output.loss_BT, torch.zeros_like(output.loss_BT))
            scalar = scalar + one.weight * (part_BT.sum() if one.plain_sum else (part_BT * weight_BT).sum() / total)
            if not one.plain_sum:
                sums[f"auxiliary/{one.name}"] = masked_sum(output.loss_BT, slices.counted_BT)
        return scalar, sums | metrics


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
        of_kl = None if self.weights.kl_N is None else to_device(self.weights.kl_N[slices.place_B], device)
        return surrogate(terms, to_device(self.weights.score_N[slices.place_B], device), of_kl), {}


# ---- from the recipe's methods ----------------------------------------------------------------------------------------


def objective_of(learner: Learner, algorithm: Algorithm, batch: Minibatch, beta: float) -> Objective:
    """Make the objective of one update. What needs to see the whole minibatch first gets its pass without gradient here."""
    if algorithm.group_loss is not None:
        return group_objective(learner, algorithm.group_loss, batch)
    regularisers = [
        Auxiliary(name=method.name, loss=method.call, weight=weight, plain_sum=method.extra.get("plain_sum", False))
        for method, weight in algorithm.auxiliary
    ]
    return TokenObjective(
        loss=algorithm.loss.call,
        reducer=algorithm.reducer.call,
        divergence=algorithm.kl.call,
        divergence_needs_old="logp_old_BT" in algorithm.kl.needs,
        beta=beta,
        importance_correction=algorithm.importance_correction.call
        if algorithm.importance_correction.name != DEFAULTS["importance_correction"]
        else None,
        auxiliary=[*(constrained(learner, c, batch) for c in algorithm.acting_on("loss")), *regularisers],
    )


def constrained(learner: Learner, constraint: Bound, batch: Minibatch) -> Auxiliary:
    """Make the term of a constraint that acts on the loss, with its dual at the weights that this update starts from. Moves the dual on."""
    x = scored_inputs(learner, batch)
    # over all ranks, so that every rank moves the dual alike
    seen = merge(dist.gather(constraint.extra["measure"](x)))
    dual = constraint.advance(seen)

    def term(x: LossInputs) -> LossOutput:
        found = constraint.extra["term"](x, dual, seen)
        return found if isinstance(found, LossOutput) else LossOutput(found)  # with metrics where somebody counts (`extras.touched`)

    return Auxiliary(name=constraint.name, loss=term, plain_sum=True)


def group_objective(learner: Learner, loss: Bound, batch: Minibatch) -> GroupObjective:
    """Make the first pass of a loss that compares rollouts: scores of all ranks without gradient, and the loss's derivatives by them."""
    score, divergence = choice(loss.call, "score") or "logL", choice(loss.call, "divergence")
    x = scored_inputs(learner, batch)
    terms = row_terms(x, score=score, divergence=divergence)
    # [N, T] -> [N]: such a loss takes one advantage per rollout, and credit has spread it over tokens
    advantage = torch.where(x.mask_BT, x.adv_BT, torch.zeros_like(x.adv_BT)).sum(dim=1) / x.mask_BT.sum(dim=1).clamp(min=1)
    vectors = (terms.score_B, advantage, x.group_B, terms.kl_B, terms.tokens_B)
    mine = list(zip(*(vector.tolist() for vector in vectors), strict=True))
    ranks = dist.gather(mine)
    everyone = [row for of_rank in ranks for row in of_rank]
    columns = [torch.tensor(c, dtype=torch.float64) for c in zip(*everyone, strict=True)]
    # score, advantage, group, divergence and tokens of the rollouts of all ranks, in float64
    s, a, g, kl, n = columns if columns else [torch.zeros(0, dtype=torch.float64)] * 5
    weights = pass_weights(loss.call, s, a, g.long(), kl, n.long())
    first = sum(len(of_rank) for of_rank in ranks[: dist.rank()])  # this rank's rows stand behind those of lower ranks
    own = slice(first, first + len(mine))
    kl_own = None if weights.kl_N is None else weights.kl_N[own].float()
    return GroupObjective(weights=weights._replace(score_N=weights.score_N[own].float(), kl_N=kl_own), score=score, divergence=divergence)
