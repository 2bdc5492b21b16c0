"""LOOP: leave-one-out baseline over attempts. arXiv:2502.01600.

A_i = K / (K - 1) * (R_i - mean R) = R_i - mean of the other attempts' R, R the sum of an attempt's rewards and K the whole attempts at the
task; every turn of the attempt carries it. The rest of LOOP is one ratio per token with a clip, no value net, and no division by a
deviation: loss `ppo_clip`, reduce `token_mean`.

Ours: an attempt with a turn that nothing judged gets 0 and enters no statistic. A flat group (see `segments.flat`) gets exactly 0.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.attempts import Attempts, regrouped
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("trajectory_loop", paper="arXiv:2502.01600", needs=("trajectory_N",))
def trajectory_loop(x: AdvantageInputs) -> Tensor:
    """Return of the attempt minus the mean of the group's other attempts, on each of its turns.

    Raises:
        ValueError: no `trajectory_N`, or an attempt whose turns are in several groups.
    """
    attempts = Attempts.of(x, "advantage 'trajectory_loop'")
    return_N = attempts.totals(x.reward_N)
    k_N = segments.count(x.group_N, attempts.first_N)
    out_N = attempts.spread(regrouped(return_N, x.group_N, attempts.first_N)) * k_N / (k_N - 1).clamp(min=1)
    return out_N.detach()
