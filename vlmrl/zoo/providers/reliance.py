"""How much a row that was sampled under another question owes to it."""

from __future__ import annotations

import dataclasses

import torch

from vlmrl.train.batch import StepBatch
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import score_rows


@provides("reliance_N")
def reliance(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, torch.Tensor]:
    """Mean log-prob of a row's tokens under its group's own question less that under the question it was asked, float64 [n]: below 0 where
    the latter made it likelier. NaN for rows that were asked the group's own. Two forwards of the other rows without gradient."""
    groups = [scored.group for _, scored in batch.groups for _ in scored.group.rollouts]
    places = [n for n, rollout in enumerate(batch.rollouts) if rollout.guidance is not None]
    asked = [dataclasses.replace(batch.rows[n], prompt=groups[n].sampled_under(batch.rollouts[n])) for n in places]
    plain = [dataclasses.replace(batch.rows[n], prompt=groups[n].prompt) for n in places]
    # on every rank, also one that has none: it may gather weights
    gap_NT = score_rows(stage.learner, plain).double() - score_rows(stage.learner, asked).double()
    out = torch.full((len(batch.rows),), float("nan"), dtype=torch.float64)
    for row, place in enumerate(places):
        out[place] = gap_NT[row, : len(asked[row].response)].mean()
    return {"reliance_N": out}
