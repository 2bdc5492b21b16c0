"""OPO: the baseline of least gradient variance, each reward weighed by its answer's length. arXiv:2505.23585, as in verl.

    A_i = r_i - b,  b = sum_i L_i r_i / sum_i L_i

with L_i the answer's tokens, and no division by a deviation. sum_i L_i A_i = 0: with a reducer that sums over tokens a group moves no
token count's worth of probability either way. Ours: a flat group (`segments.flat`) gets exactly 0; unjudged rollouts get 0 and enter
no statistic; in a group of empty answers the baseline is 0.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage.centre import centre_scale
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


def token_mean(value_N: Tensor, x: AdvantageInputs) -> Tensor:
    """Average over the tokens of the judged rollouts of each rollout's group.

    Returns:
        [N] float64; 0 for a group without tokens.
    """
    length_N = x.length_N.double()
    tokens_N = segments.mean(length_N, x.group_N, x.valid_N)
    # the mean of L * r over that of L: both have the same count
    return segments.mean(length_N * value_N, x.group_N, x.valid_N) / tokens_N.clamp(min=1e-300)


@advantage("opo", paper="arXiv:2505.23585", wants={"reduce": ("token_mean", "seq_sum", "fixed_length")})
def opo(x: AdvantageInputs) -> Tensor:
    """Subtract the group's mean weighted by length from the reward.

    Returns:
        [N] float64, without gradient.
    """
    return centre_scale(x, baseline_N=token_mean(x.reward_N, x))
