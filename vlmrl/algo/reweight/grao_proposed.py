"""GRAO: own answers are moved towards a reference answer that is better. After arXiv:2508.07750.

The abstract names three parts: several samples, a group-weighted alignment, and updates that look at the reference by pairwise preference.
Ours, as the formula was not to be found: with lbar the mean token log-prob of an answer, the loss of a group of G samples is

    -(1/G) sum_i A_i lbar_i - alpha A_ref lbar_ref - lambda (1/G) sum_i max(r_ref - r_i, 0) (lbar_ref - lbar_i)

so the coefficients of the log-probs are A_i - lambda max(r_ref - r_i, 0) for samples, and alpha G A_ref + lambda sum_i max(r_ref - r_i, 0)
over G for the reference, G times as much as of one sample. That is a reweighting of advantages for a loss without a clip (with one update
per step any is) and the reducer `seq_mean`. The reference is the row that a strategy injects; without one a group stays as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import reweight


@reweight("grao_proposed", paper="arXiv:2508.07750", needs_injected_rows=True, wants={"reduce": ("seq_mean",)}, moves_signs=True)
def grao_proposed(x: AdvantageInputs, adv_N: Tensor, *, alpha: float = 0.5, gap: float = 0.1) -> Tensor:
    """Advantages less `gap` times how much better the injected row is; that row gets what the others lose. [N]

    Raises:
        ValueError: a negative argument.
    """
    if alpha < 0 or gap < 0:
        raise ValueError(f"reweight 'grao_proposed': alpha {alpha} and gap {gap} must not be negative")
    own_N, given_N = x.valid_N & x.on_policy_N, x.valid_N & ~x.on_policy_N
    best_N = segments.maximum(x.reward_N, x.group_N, given_N)
    paired_N = (segments.count(x.group_N, given_N) > 0) & (segments.count(x.group_N, own_N) > 0)
    behind_N = torch.where(own_N & paired_N, (best_N - x.reward_N).clamp(min=0), torch.zeros_like(x.reward_N))
    rows_N = segments.count(x.group_N, own_N)
    pulled_N = rows_N * (alpha * adv_N + gap * segments.mean(behind_N, x.group_N, own_N))
    return torch.where(given_N & paired_N, pulled_N, torch.where(own_N & paired_N, adv_N - gap * behind_N, adv_N))
