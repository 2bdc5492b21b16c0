"""How much likelier each token of a step's rollouts is at another temperature, which goes by how sure the policy is."""

from __future__ import annotations

import dataclasses

import torch

from vlmrl.train import dist
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import score_tokens


@provides("tempered_NT", "batch_entropy_N", arguments=("target", "warmer", "cooler"))
def tempered(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Log-prob at a factor of the temperature less that at the temperature itself, float32 [n, T], and the mean entropy of all ranks'
    response tokens, the same for every row, float64 [n]. The factor is the method's `warmer` where that mean is at most its `target`, else
    its `cooler`. Two forwards of all rows without gradient."""
    now = score_tokens(stage.learner, batch.rows)
    width = now.entropy_NT.shape[1]
    inside_NT = batch.mask_NT[:, :width]
    total, count = (sum(part) for part in zip(*dist.gather((float(now.entropy_NT[inside_NT].sum()), int(inside_NT.sum()))), strict=True))
    entropy = total / max(1, count)
    factor = method.argument("warmer") if entropy <= method.argument("target") else method.argument("cooler")
    other = score_tokens(dataclasses.replace(stage.learner, temperature=factor * stage.learner.temperature), batch.rows)
    return {
        "tempered_NT": other.logp_NT - now.logp_NT,
        "batch_entropy_N": torch.full((len(batch.rows),), entropy, dtype=torch.float64),
    }
