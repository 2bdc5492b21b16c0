"""Trajectory-level advantages of GUI-Owl (Mobile-Agent-v3): every step of a trajectory gets the trajectory's z-score. arXiv:2508.15144.

A rollout is one step: a screen with its history, and the action. Rows with the same `trajectory_N` are the steps of one attempt at
the task that is their group. A(tau) = (R(tau) - mean R) / (std R + epsilon) over the group's trajectories, each counted once however
many steps it has, and every token of every step carries it. In the paper R(tau) is 1 for success, and -0.5 for each malformed action;
with a reward of 1 on the last step and -0.5 on malformed ones, that is the sum over the steps (`combine="sum"`). Where every row
already carries R(tau), use `combine="mean"`. Each token must weigh the same whatever its trajectory: use the reducer that averages
over all tokens of the batch.

Ours: statistics are those of the step's group (the paper keeps running ones over trajectories). A trajectory with a step that nothing
judged, such as a crash of the environment, has no R(tau): all its steps get 0 and it enters no statistic. Replay of a stored
success is a matter of which rows there are, not of this function.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.attempts import Attempts
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage


@advantage("trajectory", paper="arXiv:2508.15144", needs=("trajectory_N",))
def trajectory(x: AdvantageInputs, *, combine: Literal["sum", "mean"] = "sum", epsilon: float = 1e-4, ddof: Literal[0, 1] = 1) -> Tensor:
    """Give each step the z-score of its trajectory's reward among its group's trajectories.

    Returns:
        [N] float64, without gradient.

    Raises:
        ValueError: no `trajectory_N`, or a trajectory whose steps are in several groups.
    """
    attempts = Attempts.of(x, "advantage 'trajectory'")
    first_N = attempts.first_N
    return_N = attempts.totals(x.reward_N)
    if combine == "mean":
        return_N = return_N / attempts.steps_N
    # one row speaks for each trajectory, so that long ones do not count more in the statistics; all rows get the result
    centred_N = return_N - segments.mean(return_N, x.group_N, first_N)
    scaled_N = centred_N / (segments.std(return_N, x.group_N, first_N, ddof=ddof) + epsilon)
    live_N = attempts.whole_N & ~segments.flat(return_N, x.group_N, first_N)
    return torch.where(live_N, scaled_N, torch.zeros_like(scaled_N)).detach()
