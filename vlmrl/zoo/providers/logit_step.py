"""How far an update of one token would move its own logits."""

from __future__ import annotations

import torch

from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import learning_rate


@provides("logit_step_N")
def logit_step(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Learning rate of the coming update times the hidden size: that of plain gradient descent in the output matrix, for a hidden state
    whose norm has weights of 1. The same for all rows, float64 [n]."""
    optim = stage.cfg.optim
    rate = learning_rate(stage.state.step, stage.cfg.steps, peak=optim.lr, schedule=optim.schedule, warmup=optim.warmup)
    hidden = int(stage.policy.model.config.get_text_config().hidden_size)
    return {"logit_step_N": torch.full((len(batch.rows),), rate * hidden, dtype=torch.float64)}
