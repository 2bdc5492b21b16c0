"""The mean score of each row's group, for losses that compare a row with it (`score_mean_B`)."""

from __future__ import annotations

import torch

from vlmrl.algo.ratio import SCORES
from vlmrl.train import dist
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import Minibatch, scored_inputs


@provides("score_mean_B")
def group_score_mean(stage: Stage, batch: Minibatch, method: Bound) -> dict[str, torch.Tensor]:
    """Mean of the row score that the loss names in its `score` extra, over the minibatch of all ranks, under current weights and without
    gradient, [N]: over the whole step, not the micro-batch, so that a split that cuts groups changes nothing.

    The scores are log-ratios: while old and current policy are the same they are 0 and nothing has to run.
    """
    if batch.logp_old_NT is None:
        return {"score_mean_B": torch.zeros(len(batch.rows))}
    local = SCORES[method.extra["score"]](scored_inputs(stage.learner, batch))
    pairs = [(row.group, float(value)) for row, value in zip(batch.rows, local, strict=True)]
    sums: dict[int, list[float]] = {}
    for group, value in (pair for of_rank in dist.gather(pairs) for pair in of_rank):
        sums.setdefault(group, []).append(value)
    return {"score_mean_B": torch.tensor([sum(sums[row.group]) / len(sums[row.group]) for row in batch.rows])}
