"""What a minibatch minimises: the policy's loss with its regularisers, or a loss that compares rollouts."""

from __future__ import annotations

import torch

from vlmrl.algo.constraint.registry import merge
from vlmrl.algo.group_loss.two_pass import choice, pass_weights, row_terms
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.defaults import DEFAULTS
from vlmrl.train import dist
from vlmrl.train.objective import Auxiliary, GroupObjective, Objective, TokenObjective
from vlmrl.train.stage.algorithm import Algorithm, Bound
from vlmrl.train.step import Learner, Minibatch, loss_inputs_of, score_tokens


def objective_of(learner: Learner, algorithm: Algorithm, batch: Minibatch, beta: float) -> Objective:
    """The objective of one update. What needs to see the whole minibatch first gets its pass without gradient here."""
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
    """The term of a constraint that acts on the loss, with its dual at the weights that this update starts from."""
    x = loss_inputs_of(batch, score_tokens(learner, batch.rows))
    seen = merge(dist.gather(constraint.extra["measure"](x)))
    dual = constraint.advance(seen)

    def term(x: LossInputs) -> LossOutput:
        return LossOutput(constraint.extra["term"](x, dual, seen))

    return Auxiliary(name=constraint.name, loss=term, plain_sum=True)


def group_objective(learner: Learner, loss: Bound, batch: Minibatch) -> GroupObjective:
    """First pass of a loss that compares rollouts: scores of all ranks without gradient, and the loss's derivatives by them."""
    score, divergence = choice(loss.call, "score") or "logL", choice(loss.call, "divergence")
    x = loss_inputs_of(batch, score_tokens(learner, batch.rows))
    terms = row_terms(x, score=score, divergence=divergence)
    advantage = torch.where(x.mask_BT, x.adv_BT, torch.zeros_like(x.adv_BT)).sum(dim=1) / x.mask_BT.sum(dim=1).clamp(min=1)
    vectors = (terms.score_B, advantage, x.group_B, terms.kl_B, terms.tokens_B)
    mine = list(zip(*(vector.tolist() for vector in vectors), strict=True))
    ranks = dist.gather(mine)
    everyone = [row for of_rank in ranks for row in of_rank]
    columns = [torch.tensor(c, dtype=torch.float64) for c in zip(*everyone, strict=True)]
    s, a, g, kl, n = columns if columns else [torch.zeros(0, dtype=torch.float64)] * 5
    weights = pass_weights(loss.call, s, a, g.long(), kl, n.long())
    first = sum(len(of_rank) for of_rank in ranks[: dist.rank()])
    own = slice(first, first + len(mine))
    kl_own = None if weights.kl_N is None else weights.kl_N[own].float()
    return GroupObjective(weights=weights._replace(score_N=weights.score_N[own].float(), kl_N=kl_own), score=score, divergence=divergence)
