"""AP-GRPO of HART: rare successes take a larger step. arXiv:2602.23615, the factor of the policy term.

    A'_i = (1 + k (r_i - mean_g r)) A_i

with k 0.6 in the paper, which prints no clip. Its second factor, beta (1 - k (r_i - mean_g r)) on the divergence of each rollout, is not
here: `beta` is one number for a step. k below 1 keeps signs for rewards in [0, 1]. Ours: unjudged rollouts enter no mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import reweight


@reweight("ap_grpo", paper="arXiv:2602.23615")
def ap_grpo(x: AdvantageInputs, adv_N: Tensor, *, k: float = 0.6) -> Tensor:
    """Advantages times 1 + k * (reward - group mean). [N]

    Raises:
        ValueError: k outside [0, 1).
    """
    if not 0 <= k < 1:
        raise ValueError(f"reweight 'ap_grpo': k is {k}; it must be in [0, 1), so that signs stay")
    centred_N = x.reward_N - segments.mean(x.reward_N, x.group_N, x.valid_N)
    return torch.where(x.valid_N, adv_N * (1 + k * centred_N), adv_N)
