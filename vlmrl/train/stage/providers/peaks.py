"""How peaked the distribution is that each token was drawn from, beyond its entropy."""

from __future__ import annotations

import dataclasses

import torch

from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import score_rows


@provides("log_p2_NT", "log_p3_NT")
def peaks(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Log of the sum over the vocabulary of p^2 and of p^3, p the policy's distribution at each token, float32 [n, T].

    With z the logits over the temperature, sum p^k = Z(k z) / Z(z)^k and the log-prob of a token at the k-th of the temperature is
    k z - log Z(k z). So the log is k times the log-prob less that at the k-th of the temperature. Three forwards without gradient."""
    now_NT = score_rows(stage.learner, batch.rows)

    def log_sum(k: int) -> torch.Tensor:
        colder = dataclasses.replace(stage.learner, temperature=stage.learner.temperature / k)
        return k * now_NT - score_rows(colder, batch.rows)

    return {"log_p2_NT": log_sum(2), "log_p3_NT": log_sum(3)}
