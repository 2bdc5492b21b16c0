"""GRPO-CARE: right answers that follow from their own thought earn a bonus. arXiv:2506.16141, with the authors' code.

a: accuracy; c = min(likelihood, 0.95), the likelihood of the answer given the thought under a slowly averaged reference (the geometric
mean over the answer's tokens). S: rollouts with a > 0.1 and a >= the group's mean; B: those of S with c >= (mean c over S) - margin.
a + coefficient * a for rollouts in B. The method replaces the KL term: use a recipe with beta 0.

Ours: a rollout without an answer (NaN likelihood) is not in S; the code takes its empty span for certainty. Rounding does not put
equal rollouts on different sides of a mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping

RIGHT = 0.1
ROUNDING = 1e-9


def consistent(accuracy_N: Tensor, likelihood_N: Tensor, group_N: Tensor, valid_N: Tensor, *, clamp: float, margin: float) -> Tensor:
    """Members of B, bool [N]."""
    c_N = likelihood_N.double().clamp(max=clamp)
    mean_N = segments.mean(accuracy_N, group_N, valid_N)
    good_N = valid_N & ~c_N.isnan() & (accuracy_N > RIGHT) & (accuracy_N >= mean_N - ROUNDING * mean_N.abs().clamp(min=1))
    return good_N & (c_N >= segments.mean(c_N, group_N, good_N) - margin - ROUNDING)


@reward_shaping("care_consistency", paper="arXiv:2506.16141", needs=("consistency_N",), moves_reference=True)
def care_consistency(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    coefficient: float = 0.5,
    clamp: float = 0.95,
    margin: float = 0.01,
    every: int = 10,
    decay: float = 0.995,
) -> Tensor:
    """Add `coefficient` times the accuracy column to right answers whose likelihood given the thought is not below their peers'.

    `every` and `decay` are of the averaged reference that provides the likelihood (`policy.average`): every so many optimizer steps it
    keeps this share of itself and takes the rest from the policy.
    """
    if coefficient < 0 or margin < 0:
        raise ValueError(f"reward_shaping 'care_consistency': coefficient {coefficient} and margin {margin} must not be negative")
    k = column_index(x, reward)
    accuracy_N = rewards_NK[:, k]
    likelihood_N = need(x, "consistency_N", "reward_shaping 'care_consistency'")
    bonus_N = consistent(accuracy_N, likelihood_N, x.group_N, valid_N & ~accuracy_N.isnan(), clamp=clamp, margin=margin)
    return with_column(rewards_NK, k, torch.where(bonus_N, accuracy_N * (1 + coefficient), accuracy_N))
