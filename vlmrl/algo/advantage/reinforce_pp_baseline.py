"""REINFORCE++-baseline: reward minus group mean, whitened over all tokens of the batch. arXiv:2501.03262; verl, OpenRLHF.

c_i = r_i - mean_g on every token of rollout i; A_i = (c_i - mu) / sqrt(var + epsilon), mu and var over all response tokens of all
ranks. Defaults as in verl: sample variance (ddof 1), epsilon 1e-8 inside the root. A long answer weighs more in mu and var. With
`ddof` 0 the token mean of A is 0 and its variance 1 (where every group has signal).

Ours: a flat group (see `segments.flat`) gets exactly 0, not -mu / sigma, though its zeros count in mu and var as in verl. A group of
one gets 0 and does not count (verl would take its raw reward). Unjudged rollouts get 0 and do not count. The KL penalty is a term of
the loss, as in the baseline variant; there is no discount.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage import centre
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("reinforce_pp_baseline", paper="arXiv:2501.03262", scale="deviation", scale_over="batch", moves_signs=True)
def reinforce_pp_baseline(x: AdvantageInputs, *, epsilon: float = 1e-8, ddof: Literal[0, 1] = 1) -> Tensor:
    """Subtract the group mean from the reward, and whiten over the tokens of the batch.

    Returns:
        [N] float64, without gradient.
    """
    centred_N = centre.centre_scale(x)
    # flat groups stay in: their zeros are tokens of the batch, as in verl
    counted_N = x.valid_N & (segments.count(x.group_N, x.valid_N) > 1)
    mean, variance = centre.weighted_moments(centred_N, x.length_N, counted_N, ddof=ddof)
    return centre.only((centred_N - mean) / (variance + epsilon).sqrt(), centre.live(x))
