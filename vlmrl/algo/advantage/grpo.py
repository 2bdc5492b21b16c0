"""GRPO: z-score within the group. arXiv:2402.03300, section 4.1.2.

A_i = (r_i - mean_g) / (std_g + epsilon). Defaults as in TRL: sample deviation (ddof 1), epsilon 1e-4.
Ours: a flat group (see `segments.flat`) gets exactly 0; unjudged rollouts get 0 and enter no statistic.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("grpo", paper="arXiv:2402.03300", scale="deviation")
def grpo(x: AdvantageInputs, *, epsilon: float = 1e-4, ddof: Literal[0, 1] = 1) -> Tensor:
    """Divide reward minus group mean by the group deviation.

    Returns:
        [N] float64, without gradient.
    """
    centred_N = x.reward_N - segments.mean(x.reward_N, x.group_N, x.valid_N)
    scaled_N = centred_N / (segments.std(x.reward_N, x.group_N, x.valid_N, ddof=ddof) + epsilon)
    live_N = x.valid_N & ~segments.flat(x.reward_N, x.group_N, x.valid_N)
    # no product with the mask: an unjudged reward is NaN, and 0 * NaN is NaN
    return torch.where(live_N, scaled_N, torch.zeros_like(scaled_N)).detach()
