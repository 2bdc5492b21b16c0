"""RLOO: reward minus the mean of the other rollouts of the group. arXiv:2402.14740, section 2.

A_i = r_i - (S_g - r_i) / (n - 1) = n / (n - 1) * (r_i - mean_g), n the judged rollouts of the group and S_g their sum. The baseline
of a rollout does not depend on its own reward. As in TRL and verl there is no division by a deviation.

Ours: the paper puts the KL penalty into the reward; here it is a term of the loss. Without TRL's optional normalisation over the
batch. A flat group (see `segments.flat`), so also a group of one, gets exactly 0; unjudged rollouts get 0 and enter no statistic.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.advantage.centre import centre_scale
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("rloo", paper="arXiv:2402.14740")
def rloo(x: AdvantageInputs) -> Tensor:
    """Subtract the mean of the others in the group from the reward.

    Returns:
        [N] float64, without gradient.
    """
    n_N = segments.count(x.group_N, x.valid_N)
    # r - (S - r) / (n - 1) = n / (n - 1) * (r - mean)
    return centre_scale(x, phi_N=n_N / (n_N - 1).clamp(min=1))
