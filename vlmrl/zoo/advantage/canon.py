"""CANON: each half of a group, split by a metric, is compared with the other. arXiv:2509.23962, with the authors' code.

The group is sorted by the metric x; the low half has floor(n / 2) rollouts. inter_i = r_i - mean of the other half,
intra_i = r_i - mean of the own half, A_i = mu * inter_i + (1 - mu) * intra_i, without a deviation (token sums over a constant length in the
authors' loss: reduce `fixed_length`). With an even n and mu 0.5 this is reward minus group mean. `alpha` prefers a half: in inter_i its
rewards, and its mean where the other half is compared with it, are multiplied by alpha. Preferred are long answers (`canon_length`) and
answers of low entropy (`canon_entropy`).

Ours: mu 1 by default (the comparison between halves alone). Rollouts that tie at the border belong to both halves in equal shares, so
that no order decides; if all tie, A is reward minus group mean (alpha 1). A flat group gets exactly 0; unjudged rollouts get 0 and
enter no statistic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.advantage import centre
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage


def high_share(metric_n: Tensor) -> Tensor:
    """How much each member belongs to the high half, float64 [n] in [0, 1]; the low half has floor(n / 2) members."""
    low = len(metric_n) // 2
    ordered = metric_n.sort().values
    border = ordered[min(low, len(ordered) - 1)]
    below, at = int((metric_n < border).sum()), int((metric_n == border).sum())
    share = 1 - (low - below) / max(at, 1)
    return torch.where(metric_n > border, 1.0, torch.where(metric_n < border, 0.0, share)).double()


def conditional(x: AdvantageInputs, metric_N: Tensor, *, mu: float, alpha: float, prefer_high: bool, method: str) -> Tensor:
    """The advantage from a metric per rollout.

    Raises:
        ValueError: `mu` outside [0, 1], or `alpha` below 0.
    """
    if not 0 <= mu <= 1 or alpha < 0:
        raise ValueError(f"advantage '{method}': needs mu {mu} in [0, 1] and alpha {alpha} >= 0")
    out_N = torch.zeros(x.valid_N.shape, dtype=torch.float64)
    live_N = centre.live(x)
    for one in sorted({int(i) for i in x.group_N[live_N]}):
        member_N = live_N & (x.group_N == one)
        reward_n, high_n = x.reward_N[member_N].double(), high_share(metric_N[member_N])
        mean_high = (high_n * reward_n).sum() / high_n.sum()
        mean_low = ((1 - high_n) * reward_n).sum() / (1 - high_n).sum()
        of_high, of_low = (alpha, 1.0) if prefer_high else (1.0, alpha)
        inter_n = high_n * (of_high * reward_n - of_low * mean_low) + (1 - high_n) * (of_low * reward_n - of_high * mean_high)
        intra_n = reward_n - high_n * mean_high - (1 - high_n) * mean_low
        out_N[member_N] = mu * inter_n + (1 - mu) * intra_n
    return centre.only(out_N, live_N)


@advantage("canon_length", paper="arXiv:2509.23962", wants={"reduce": ("fixed_length", "token_mean", "seq_sum")}, moves_signs=True)
def canon_length(x: AdvantageInputs, *, mu: float = 1.0, alpha: float = 1.0) -> Tensor:
    """Reward minus the mean of the other half by length; `alpha` above 1 prefers long answers."""
    return conditional(x, x.length_N.double(), mu=mu, alpha=alpha, prefer_high=True, method="canon_length")


@advantage(
    "canon_entropy",
    paper="arXiv:2509.23962",
    needs=("entropy_NT",),
    wants={"reduce": ("fixed_length", "token_mean", "seq_sum")},
    moves_signs=True,
)
def canon_entropy(x: AdvantageInputs, *, mu: float = 1.0, alpha: float = 1.0) -> Tensor:
    """Reward minus the mean of the other half by mean token entropy; `alpha` above 1 prefers low entropy."""
    entropy_NT = need(x, "entropy_NT", "advantage 'canon_entropy'").double()
    inside_NT = torch.arange(entropy_NT.shape[1])[None, :] < x.length_N[:, None]
    metric_N = torch.where(inside_NT, entropy_NT, torch.zeros_like(entropy_NT)).sum(dim=1) / x.length_N.clamp(min=1)
    return conditional(x, metric_N, mu=mu, alpha=alpha, prefer_high=False, method="canon_entropy")
