"""DaGRPO's mask: pairs of a right and a wrong answer that a judge can hardly tell apart do not train. After arXiv:2512.06337.

The paper masks rollout pairs whose fine-grained scores are too close, and adds anchors from elsewhere for prompts with few right answers.
Ours, as only the abstract was there to read: the score is the reward column `score` (give it weight 0), in [0, 1]; each rollout of positive
advantage is paired with the rollout of negative advantage and nearest score (the first of equals), and both get advantage 0 if the
scores differ by less than `threshold`. Rollouts without a score are in no pair. Advantages are not computed again. For anchors use a
strategy that injects rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index
from vlmrl.algo.registries import reweight


@reweight("dagrpo_proposed", paper="arXiv:2512.06337")
def dagrpo_proposed(x: AdvantageInputs, adv_N: Tensor, *, score: str, threshold: float = 0.1) -> Tensor:
    """Advantage 0 for a right answer and its nearest wrong one where the column `score` differs by less than `threshold`. [N]

    Raises:
        ValueError: a negative threshold, or no such reward.
    """
    if threshold < 0:
        raise ValueError(f"reweight 'dagrpo_proposed': threshold is {threshold}; it must not be negative")
    score_N = x.rewards_NK[:, column_index(x, score, "reweight 'dagrpo_proposed'")]
    scored_N = x.valid_N & ~score_N.isnan()
    masked_N = torch.zeros_like(x.valid_N)
    for one in sorted({int(i) for i in x.group_N[scored_N]}):
        member_N = scored_N & (x.group_N == one)
        right, wrong = (member_N & (adv_N > 0)).nonzero()[:, 0], (member_N & (adv_N < 0)).nonzero()[:, 0]
        if not len(right) or not len(wrong):
            continue
        gap_RW = (score_N[right][:, None] - score_N[wrong][None, :]).abs()
        close = gap_RW.min(dim=1)
        alike = close.values < threshold
        masked_N[right[alike]] = True
        masked_N[wrong[close.indices[alike]]] = True
    return torch.where(masked_N, torch.zeros_like(adv_N), adv_N)
