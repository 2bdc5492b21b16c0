"""Group mean, deviation of the batch: Lite-PPO of "Tricks or Traps?". arXiv:2508.08221; TRL's `scale_rewards="batch"`.

A_i = (r_i - mean_g) / (std of the raw rewards of all rollouts of the batch + epsilon). A nearly solved prompt is not amplified
relative to a half solved one. Lite-PPO's other half is the reducer over all tokens (`token_mean`).

Defaults as in TRL: sample deviation (ddof 1), epsilon 1e-4. All judged rewards of all ranks enter the deviation, those of flat
groups and of groups of one too. Ours: a flat group (see `segments.flat`) gets exactly 0; unjudged rollouts get 0 and enter no statistic.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from vlmrl.algo.advantage import centre
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("batch_std", paper="arXiv:2508.08221", scale="deviation", scale_over="batch")
def batch_std(x: AdvantageInputs, *, epsilon: float = 1e-4, ddof: Literal[0, 1] = 1) -> Tensor:
    """Divide reward minus group mean by the deviation of the batch's rewards.

    Returns:
        [N] float64, without gradient.
    """
    return centre.centre_scale(x, scale_N=centre.batch_std(x.reward_N, x.valid_N, ddof=ddof), epsilon=epsilon)
