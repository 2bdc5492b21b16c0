"""Turn returns: each turn's own sum of later rewards, minus the mean of the group's turns. MARS, arXiv:2510.15414, with one role.

    A_t = Q_t - mean of Q,  Q_t = sum over j >= t of gamma^(j - t) r_j

over all turns of the group (`baseline: all`) or over those with the same number (`baseline: turn`; a turn that only one attempt has gets
0). MARS normalises per role; a group here has one. It needs rewards that differ between turns: with a reward on the last turn alone and
gamma 1 all turns of an attempt carry the same, and long attempts count more in the mean.

Ours: an attempt with a turn that nothing judged gets 0 and enters no statistic.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from vlmrl.algo.attempts import Attempts, before, check_gamma, joint, regrouped, returns
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage


@advantage("turn_return", paper="arXiv:2510.15414", needs=("trajectory_N", "turn_N"))
def turn_return(x: AdvantageInputs, *, gamma: float = 1.0, baseline: Literal["all", "turn"] = "all") -> Tensor:
    """Discounted return from the turn on, minus the mean over the group's turns, or over those with the same number.

    Raises:
        ValueError: gamma outside [0, 1], a need that is missing, two rows of one turn, or an attempt in several groups.
    """
    check_gamma(gamma, "advantage 'turn_return'")
    attempts = Attempts.of(x, "advantage 'turn_return'")
    turn_N = need(x, "turn_N", "advantage 'turn_return'")
    q_N = returns(x.reward_N, before(attempts.trajectory_N, turn_N, "advantage 'turn_return'"), gamma)
    key_N = x.group_N if baseline == "all" else joint(x.group_N, turn_N)
    return regrouped(q_N, key_N, attempts.whole_N).detach()
