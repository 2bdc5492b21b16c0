"""The median advantage of each row's group, for losses that compare a row with it (`adv_median_B`)."""

from __future__ import annotations

import statistics

import torch

from vlmrl.train import dist
from vlmrl.train.stage.algorithm import Bound
from vlmrl.train.stage.base import Stage
from vlmrl.train.stage.provide import provides
from vlmrl.train.step import Minibatch


@provides("adv_median_B")
def group_adv_median(stage: Stage, batch: Minibatch, method: Bound) -> dict[str, torch.Tensor]:
    """Median over the rows of each group, of all ranks, of a row's mean advantage, [N]; between the two middle ones of an even number."""
    mean_N = torch.where(batch.mask_NT, batch.adv_NT, torch.zeros_like(batch.adv_NT)).sum(dim=1) / batch.mask_NT.sum(dim=1).clamp(min=1)
    pairs = [(row.group, value) for row, value in zip(batch.rows, mean_N.tolist(), strict=True)]
    of_group: dict[int, list[float]] = {}
    for group, value in (pair for of_rank in dist.gather(pairs) for pair in of_rank):
        of_group.setdefault(group, []).append(value)
    medians = {group: statistics.median(values) for group, values in of_group.items()}
    return {"adv_median_B": torch.tensor([medians[row.group] for row in batch.rows])}
