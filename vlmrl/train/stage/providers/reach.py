"""Rows that were sampled under a hint and train without it: which of them the policy can learn from (`algo.behaviour`)."""

from __future__ import annotations

import torch

from vlmrl.algo import behaviour
from vlmrl.train import dist
from vlmrl.train.batch import StepBatch, sampler_logprobs
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import score_rows


@provides("trains_N")
def within_reach(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """False for kept rows of a hint whose ratio is taken against the sampler and that the policy finds too unlikely without it, bool [n].

    Logs `guidance/out_of_reach` and `guidance/mean_ratio`, over all ranks, where there is such a row.
    """
    trains_N = torch.ones(len(batch.rows), dtype=torch.bool)
    rollouts = batch.rollouts
    guided = [n for n in batch.kept() if rollouts[n].old_from_sampler and rollouts[n].provenance == "guided"]
    counts = [0.0, 0.0, 0.0]
    logp_NT = score_rows(stage.learner, [batch.rows[n] for n in guided])  # on every rank, also one that has none: it may gather weights
    if guided:
        width = logp_NT.shape[1]
        _, old_NT = sampler_logprobs([rollouts[n] for n in guided], batch.mask_NT.shape[1])
        mask_NT, old_NT = batch.mask_NT[torch.tensor(guided)][:, :width], old_NT[:, :width]
        far_N = behaviour.out_of_reach(logp_NT, old_NT, mask_NT, torch.ones(len(guided), dtype=torch.bool))
        counts = [float(len(guided)), float(far_N.sum()), float(behaviour.mean_ratio(logp_NT, old_NT, mask_NT).sum())]
        trains_N[torch.tensor(guided)] = ~far_N
    total, dropped, ratio = (sum(values) for values in zip(*dist.gather(counts), strict=True))
    if total:
        batch.measured |= {"guidance/out_of_reach": dropped, "guidance/mean_ratio": ratio / total}
    return {"trains_N": trains_N}
