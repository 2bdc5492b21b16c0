"""Which question of its group each row was asked."""

from __future__ import annotations

import torch

from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides


@provides("question_N")
def question_numbers(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """0 for a group's own question, else the tier of the question that a strategy asked instead, int64 [n]."""
    return {"question_N": torch.tensor([0 if r.guidance is None else r.guidance.tier for r in batch.rollouts], dtype=torch.int64)}
