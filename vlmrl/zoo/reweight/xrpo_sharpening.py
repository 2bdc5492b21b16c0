"""XRPO's novelty-aware sharpening: unlikely right answers earn more. arXiv:2510.06672.

    A'_i = A_i + min(max(lambda (1 - eta_i), 0), kappa A_i) for A_i > 0,  eta_i = exp(s_i - mean_g s)

with s_i the mean log-prob of the answer's tokens under the policy that sampled it. Negative advantages stay. Ours: lambda 1 and kappa
0.5 (not in what we could read); rows that the policy did not sample have no s: they stay as they are and enter no mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight


@reweight("xrpo_sharpening", paper="arXiv:2510.06672", needs=("logp_N",))
def xrpo_sharpening(x: AdvantageInputs, adv_N: Tensor, *, scale: float = 1.0, kappa: float = 0.5) -> Tensor:
    """Positive advantages plus a bonus for answers less likely than their group's mean, at most `kappa` of the advantage. [N]

    Raises:
        ValueError: a negative argument, or no log-probs.
    """
    if scale < 0 or kappa < 0:
        raise ValueError(f"reweight 'xrpo_sharpening': scale {scale} and kappa {kappa} must not be negative")
    logp_N = need(x, "logp_N", "reweight 'xrpo_sharpening'").double()
    score_N = logp_N / x.length_N.clamp(min=1)
    counted_N = x.valid_N & ~score_N.isnan()
    novelty_N = 1 - (score_N - segments.mean(score_N, x.group_N, counted_N)).exp()
    bonus_N = torch.minimum((scale * novelty_N).clamp(min=0), kappa * adv_N)
    return torch.where(counted_N & (adv_N > 0), adv_N + bonus_N, adv_N)
