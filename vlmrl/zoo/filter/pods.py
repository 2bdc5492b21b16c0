"""PODS: of many rollouts train on the few whose rewards differ most. Max-variance down-sampling, arXiv:2504.13818.

From each group the `keep` rows with the largest reward variance: always the i highest and the keep - i lowest for some i, so sorting
and trying every i is exact. The advantages belong to the kept rows alone: the method is registered with `before_advantage=True`, and
the trainer must clear `valid_N` of the dropped rows before it computes them.

Ours: a tie goes to the more balanced split and then to the one with more high rewards; among equal rewards to the earlier rows. A
group with at most `keep` judged, sampled rows stays as it is. Rows that were not sampled (a ground truth) stay and do not count;
where rows are dropped, those that nobody judged go too. `keep=16` is the paper's choice for 64 rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import rollout_filter

KEEP = 16


def widest(reward_n: Tensor, keep: int) -> Tensor:
    """Places [keep] of the max-variance subset of finite rewards [n], n >= keep >= 1, in no order."""
    order_n = reward_n.argsort(stable=True)
    sorted_n = reward_n[order_n]
    lowest: list[tuple[float, int, int]] = []
    for high in range(keep + 1):
        chosen = torch.cat([sorted_n[: keep - high], sorted_n[len(sorted_n) - high :]])
        # rounded, so that the last bit does not decide between equal splits
        variance = float(chosen.var(unbiased=False))
        lowest.append((-float(f"{variance:.9e}"), abs(2 * high - keep), -high))
    high = -min(lowest)[2]
    # equal rewards: the earlier rows, at both ends of the order
    bottom = order_n[: keep - high]
    top = (-reward_n).argsort(stable=True)
    taken = torch.zeros(len(reward_n), dtype=torch.bool)
    taken[bottom] = True
    return torch.cat([bottom, top[~taken[top]][:high]])


def _keeps_everything(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    keep, rows = arguments.get("keep", KEEP), stage.rollout.num_generations
    if isinstance(keep, int) and keep >= rows and stage.budget.name == "fixed":
        yield f"filter 'pods' keeps {keep} rows of a group and rollout.num_generations is {rows}, so it would do nothing; lower keep"


@rollout_filter("pods", paper="arXiv:2504.13818", before_advantage=True, refuses=_keeps_everything)
def pods(x: AdvantageInputs, *, keep: int = KEEP) -> tuple[Tensor, str]:
    """Keep the `keep` rows of each group whose rewards have the largest variance."""
    if keep < 2:
        raise ValueError(f"filter 'pods': keep {keep} must be at least 2; one row has no variance")
    counted_N = x.valid_N & x.on_policy_N
    kept_N = torch.ones_like(x.valid_N)
    for group in sorted({int(g) for g in x.group_N[counted_N]}):
        member_N = x.group_N == group
        places = (member_N & counted_N).nonzero()[:, 0]
        if len(places) <= keep:
            continue
        kept_N[member_N & x.on_policy_N] = False
        kept_N[places[widest(x.reward_N[places], keep)]] = True
    return kept_N, "pods"
