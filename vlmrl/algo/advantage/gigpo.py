"""GiGPO: group in group, the attempt's advantage plus that of each turn among the turns at an equal state. arXiv:2505.10978.

    A = A_episode + w * A_step
    A_episode: return of the attempt minus the mean over the group's attempts
    A_step:    Q - mean of Q over the group's turns at the same state, Q_t = sum over j >= t of gamma^(j - t) r_j

A state that nobody else met gives no step part; one that an attempt meets twice counts twice. With `normalise: deviation` both are
divided by the sample deviation + epsilon. With w 0 this is LOOP without its factor, and the advantage `trajectory` without a deviation.

Ours: the mean over the group is one over attempts. The released code takes it over turns, so that long attempts count more:
`mean_over: turns`. There a group of one keeps its return; here it gets 0. An attempt with a turn that nothing judged gets 0 and enters
no statistic; a turn without a state (-1) has no step part.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from vlmrl.algo.attempts import Attempts, before, check_gamma, joint, regrouped, returns
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage


@advantage("gigpo", paper="arXiv:2505.10978", needs=("trajectory_N", "turn_N", "state_N"))
def gigpo(
    x: AdvantageInputs,
    *,
    gamma: float = 0.95,
    w: float = 1.0,
    normalise: Literal["mean", "deviation"] = "mean",
    mean_over: Literal["attempts", "turns"] = "attempts",
    epsilon: float = 1e-6,
) -> Tensor:
    """Add to the attempt's advantage w times that of the turn among the turns of the group at the same state.

    Returns:
        [N] float64, without gradient.

    Raises:
        ValueError: gamma outside [0, 1], a need that is missing, two rows of one turn, or an attempt in several groups.
    """
    check_gamma(gamma, "advantage 'gigpo'")
    attempts = Attempts.of(x, "advantage 'gigpo'")
    state_N, turn_N = need(x, "state_N", "advantage 'gigpo'"), need(x, "turn_N", "advantage 'gigpo'")
    ddof = None if normalise == "mean" else 1
    # an attempt's total stands at each of its rows: counted once, or once per turn
    counted_N = attempts.first_N if mean_over == "attempts" else attempts.whole_N
    episode_N = attempts.spread(regrouped(attempts.totals(x.reward_N), x.group_N, counted_N, ddof=ddof, epsilon=epsilon))
    # Q_t = r_t + gamma Q_(t+1), compared among the turns of the group at the same state
    q_N = returns(x.reward_N, before(attempts.trajectory_N, turn_N, "advantage 'gigpo'"), gamma)
    step_N = regrouped(q_N, joint(x.group_N, state_N), attempts.whole_N & (state_N >= 0), ddof=ddof, epsilon=epsilon)
    return (episode_N + w * step_N).detach()
