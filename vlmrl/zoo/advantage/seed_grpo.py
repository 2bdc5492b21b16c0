"""SEED-GRPO: smaller updates where the answers of a group disagree. arXiv:2505.12346.

A_i = (r_i - mean_g) * f(alpha * SE / SE_max), without division by the deviation. SE is the semantic entropy of the group's answers,
clustered by what was parsed; f decreases in it. Applied to the advantage: a factor of the rewards would cancel in a z-score.

Ours (not in the sources we could read): SE_max = log of the number of answers, alpha = 1, and the constants of f, with
x = SE / SE_max clipped to [0, 1]: linear max(0, 1 - alpha x), exponential exp(-alpha x), focal (1 - x)^alpha. The default entropy
counts answers, -sum (n_k / n) log(n_k / n); "likelihood" is the paper's form, -(1 / C) sum log p_k over C clusters with p_k
proportional to their summed sequence probabilities, which favours short responses. Unparsed answers are one cluster or one each.
Only rollouts that were sampled count: a ground truth says nothing about what the policy is unsure of.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage


def count_entropy(cluster_n: Tensor) -> float:
    """Entropy in nats of the shares of the clusters, int64 [n]."""
    # every member contributes the log of its own cluster's share
    share_n = (cluster_n[None, :] == cluster_n[:, None]).double().mean(dim=1)
    return -float(share_n.log().mean())


def likelihood_entropy(cluster_n: Tensor, logp_n: Tensor) -> float:
    """-(1/C) sum_k log p_k, p_k the softmax over clusters of the log-sum of their members' sequence probabilities."""
    clusters = sorted({int(k) for k in cluster_n})
    mass_C = torch.stack([logp_n[cluster_n == k].logsumexp(dim=0) for k in clusters])
    return -float(mass_C.log_softmax(dim=0).mean())


def _damping(share: float, form: str, alpha: float) -> float:
    if form == "linear":
        return max(0.0, 1 - alpha * share)
    if form == "exponential":
        return math.exp(-alpha * share)
    return (1 - share) ** alpha


def _own_clusters(answer_n: Tensor) -> Tensor:
    """Unparsed answers as clusters of their own: -1, -2, ..."""
    unparsed_n = answer_n < 0
    return torch.where(unparsed_n, -unparsed_n.long().cumsum(0), answer_n)


@advantage("seed_grpo", paper="arXiv:2505.12346", needs=("answer_N", "logp_N"))
def seed_grpo(
    x: AdvantageInputs,
    *,
    form: Literal["linear", "exponential", "focal"] = "linear",
    alpha: float = 1.0,
    entropy: Literal["count", "likelihood"] = "count",
    unparsed: Literal["one", "each"] = "one",
) -> Tensor:
    """Reward minus group mean, damped where the group's answers disagree. `entropy: likelihood` needs `logp_N` too."""
    if alpha < 0:
        raise ValueError(f"advantage 'seed_grpo': alpha is {alpha}, must not be negative: uncertain prompts would be strengthened")
    answer_N = need(x, "answer_N", "advantage 'seed_grpo'")
    logp_N = need(x, "logp_N", "advantage 'seed_grpo' with entropy 'likelihood'").double() if entropy == "likelihood" else None
    sampled_N = x.valid_N & x.on_policy_N
    if logp_N is not None:
        sampled_N &= ~logp_N.isnan()
    factor_N = torch.ones(x.reward_N.shape, dtype=torch.float64)
    for one in sorted({int(i) for i in x.group_N[sampled_N]}):
        member_N = sampled_N & (x.group_N == one)
        cluster_n = answer_N[member_N].clamp(min=-1) if unparsed == "one" else _own_clusters(answer_N[member_N])
        if cluster_n.numel() < 2:
            continue
        se = count_entropy(cluster_n) if logp_N is None else likelihood_entropy(cluster_n, logp_N[member_N])
        share = min(max(se / math.log(cluster_n.numel()), 0.0), 1.0)
        # equal shares reach the maximum up to rounding only
        factor_N[x.group_N == one] = _damping(1.0 if share > 1 - 1e-12 else share, form, alpha)
    centred_N = (x.reward_N - segments.mean(x.reward_N, x.group_N, x.valid_N)) * factor_N
    live_N = x.valid_N & ~segments.flat(x.reward_N, x.group_N, x.valid_N)
    return torch.where(live_N, centred_N, torch.zeros_like(centred_N)).detach()
