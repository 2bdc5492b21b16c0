"""HAPO's token-level group average: mean and deviation of a group over its tokens. arXiv:2509.16591, with the authors' code.

    A_i = (r_i - mean) / (std + epsilon),  mean and population std of r over all tokens of the group, r_i counted L_i times

Where any |A| of a group is `guard` (5) or more, the group gets GRPO's z-score with the population deviation. Of the method's other
parts, `hapo_low_entropy` is the redistribution; sampling temperatures and clip bounds by the entropy of a token are not here.
Ours: a flat group gets exactly 0; unjudged rollouts get 0 and enter no statistic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage.centre import centre_scale
from vlmrl.algo.advantage.opo import token_mean
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("hapo", paper="arXiv:2509.16591", scale="deviation")
def hapo(x: AdvantageInputs, *, guard: float = 5.0, epsilon: float = 1e-6) -> Tensor:
    """Reward minus the group's mean over tokens, over its deviation over tokens.

    Raises:
        ValueError: `guard` is not positive.
    """
    if guard <= 0:
        raise ValueError(f"advantage 'hapo': guard is {guard}, must be positive")
    mean_N = token_mean(x.reward_N, x)
    std_N = token_mean((x.reward_N - mean_N).square(), x).clamp(min=0).sqrt()
    out_N = centre_scale(x, baseline_N=mean_N, scale_N=std_N, epsilon=epsilon)
    plain_N = centre_scale(x, scale_N=segments.std(x.reward_N, x.group_N, x.valid_N, ddof=0), epsilon=epsilon)
    return torch.where(segments.maximum(out_N.abs(), x.group_N, x.valid_N) >= guard, plain_N, out_N)
