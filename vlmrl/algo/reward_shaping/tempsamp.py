"""TempSamp-R1's repairs of a group that holds a ground-truth row. arXiv:2509.18056, section 3.3 (eq. 4 and its alternatives).

Both act on one reward column before the advantage; what is logged stays raw.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, with_column
from vlmrl.algo.registries import reward_shaping


def nonlinear(reward: Tensor, *, tau: float, alpha_hi: float, alpha_lo: float) -> Tensor:
    """Bend rewards by eq. 4, elementwise. The limit alpha_lo -> 0 is r itself below tau.

    Returns:
        tau + alpha_hi * ln(r - tau + 1) from tau on, tau - (exp(alpha_lo (tau - r)) - 1) / (exp(alpha_lo) - 1) below.
    """
    # both branches are computed for all rows; the clamps keep the one that is not taken finite
    above = tau + alpha_hi * (reward - tau).clamp(min=0).log1p()
    gap = (tau - reward).clamp(min=0)
    below = tau - (gap if alpha_lo == 0 else torch.expm1(alpha_lo * gap) / math.expm1(alpha_lo))
    return torch.where(reward >= tau, above, below)


@reward_shaping("tempsamp_nonlinear", paper="arXiv:2509.18056", monotone=True, alternative="TempSamp-R1's repairs")
def tempsamp_nonlinear(
    rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, tau: float = 0.8, alpha_hi: float = 0.01, alpha_lo: float = 1.0
) -> Tensor:
    """Compress a column above tau and stretch it below, for every row.

    Returns:
        Rewards [N, K].

    Raises:
        ValueError: there is no such column.
    """
    k = column_index(x, reward)
    return with_column(rewards_NK, k, nonlinear(rewards_NK[:, k], tau=tau, alpha_hi=alpha_hi, alpha_lo=alpha_lo))


@reward_shaping("tempsamp_downscale", paper="arXiv:2509.18056", needs_injected_rows=True, alternative="TempSamp-R1's repairs")
def tempsamp_downscale(
    rewards_NK: Tensor, valid_N: Tensor, x: AdvantageInputs, *, reward: str, factor: float = 0.8, maximum: float = 1.0
) -> Tensor:
    """Give rows that were not sampled `factor` times the column's maximum.

    Returns:
        Rewards [N, K].

    Raises:
        ValueError: there is no such column.
    """
    k = column_index(x, reward)
    return with_column(rewards_NK, k, torch.where(x.on_policy_N, rewards_NK[:, k], torch.full_like(rewards_NK[:, k], factor * maximum)))
