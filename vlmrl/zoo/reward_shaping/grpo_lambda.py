"""GRPO-lambda: shorter right answers earn more, only in the groups that are solved best. arXiv:2505.18086.

Groups are sorted by their share of right answers. In the top share `lam` of the batch's groups a right answer gets
1 - alpha * sigmoid((L - mean) / std), with mean and deviation of the lengths of the group's right answers, and a wrong one 0. The other
groups keep their 0/1 reward.

Ours: at least one group is selected, ties go to the lower group id, and a selected group without a right answer keeps its rewards.
With fewer than two right answers, or all of one length, the sigmoid is 1/2. lam and alpha are a third party's; the deviation is the
population's. For graded columns a rollout is right from `correct_from` on, and its own value is scaled. Rollouts that were not sampled
keep theirs and enter no statistic: a ground truth has no length to learn from.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, with_column
from vlmrl.algo.registries import reward_shaping


def best_solved(rate_N: Tensor, group_N: Tensor, counted_N: Tensor, lam: float) -> Tensor:
    """Members of the max(1, ceil(lam * groups)) groups with the highest rate, bool [N]; nobody when lam is 0. `rate_N`: of the group."""
    rates = {int(g): float(r) for g, r in zip(group_N[counted_N], rate_N[counted_N], strict=True)}
    # 0.2 * 15 is not above 3, whatever rounding says
    n = 0 if lam == 0 else max(1, math.ceil(lam * len(rates) - 1e-9))
    top = sorted(rates, key=lambda g: (-rates[g], g))[:n]
    return counted_N & torch.isin(group_N, torch.tensor(top, dtype=group_N.dtype))


@reward_shaping("grpo_lambda", paper="arXiv:2505.18086")
def grpo_lambda(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    lam: float = 0.2,
    alpha: float = 0.6,
    correct_from: float = 1.0,
) -> Tensor:
    """Scale a correctness column by length in the groups that are solved best."""
    if not 0 <= lam <= 1 or not 0 <= alpha < 1 or correct_from <= 0:
        raise ValueError(
            f"reward_shaping 'grpo_lambda': lam {lam}, alpha {alpha}, correct_from {correct_from}; "
            "needs lam in [0, 1], correct_from above 0, "
            "and alpha in [0, 1) so that right stays above wrong"
        )
    k = column_index(x, reward)
    value_N = rewards_NK[:, k]
    counted_N = valid_N & x.on_policy_N & ~value_N.isnan()
    right_N = counted_N & (value_N >= correct_from)
    length_N = x.length_N.double()

    rate_N = segments.mean(right_N.double(), x.group_N, counted_N)
    acted_N = best_solved(rate_N, x.group_N, counted_N, lam) & (rate_N > 0)
    std_N = segments.std(length_N, x.group_N, right_N, ddof=0)
    z_N = (length_N - segments.mean(length_N, x.group_N, right_N)) / torch.where(std_N > 0, std_N, torch.ones_like(std_N))
    z_N = torch.where(std_N > 0, z_N, torch.zeros_like(z_N))
    shorter_N = torch.where(right_N, value_N * (1 - alpha * z_N.sigmoid()), torch.zeros_like(value_N))
    return with_column(rewards_NK, k, torch.where(acted_N, shorter_N, value_N))
