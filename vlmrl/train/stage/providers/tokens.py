"""Values per token of a step's rollouts, under the weights that the step starts from and under the stage's starting weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vlmrl.policy.pack import Row, tensor_of
from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import score_tokens


@provides("ids_NT")
def response_tokens(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Token ids of each response, int64 [n, T]."""
    return {"ids_NT": response_ids(batch.rows, batch.mask_NT.shape[1])}


def response_ids(rows: Sequence[Row], width: int) -> torch.Tensor:
    """Lay out the token ids of the answers.

    Returns:
        [N, width] int64; 0 behind the ends of the answers.
    """
    out = torch.zeros((len(rows), width), dtype=torch.int64)
    for n, row in enumerate(rows):
        out[n, : len(row.response)] = tensor_of(row.response)
    return out


@provides("logp_NT", "entropy_NT")
def under_policy(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Log-prob of each sampled token, entropy of the distribution it was drawn from, and what else of the logits the recipe's methods need
    (`algo.needs.token_stat`), under the current policy: one forward of all rows without gradient. float32 [n, T], 0 outside the
    responses."""
    scored = score_tokens(stage.learner, batch.rows, stats=stage.providers.stats_of("NT"))
    return {"logp_NT": scored.logp_NT, "entropy_NT": scored.entropy_NT, **scored.stats}


@provides("logp_ref_NT", reference=True)
def under_reference(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Log-prob of each sampled token under the stage's starting weights, float32 [n, T]."""
    return {"logp_ref_NT": stage.score_reference(batch.rows)}
