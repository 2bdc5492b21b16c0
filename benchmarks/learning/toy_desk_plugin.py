"""Plug-in of the desk benchmark: `advantage` `gigpo_shuffled`, GiGPO on returns that were dealt anew to the attempts of a group.

The control of a claim about learning: same rows, steps, sizes of advantages and updates, but what an attempt is credited with says nothing
about it. Importing it registers the method, so only the control's recipe names it.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vlmrl.algo.advantage.gigpo import gigpo
from vlmrl.algo.attempts import Attempts
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import advantage
from vlmrl.rng import key


def dealt(x: AdvantageInputs, attempts: Attempts) -> Tensor:
    """Rewards [N] with the returns of each group dealt anew to its whole attempts, each on its attempt's last turn. The order follows the
    share of the stage that is done, so that a resumed run deals the same."""
    turn_N, total_N = need(x, "turn_N", "advantage 'gigpo_shuffled'"), attempts.totals(x.reward_N)
    progress = float(need(x, "progress", "advantage 'gigpo_shuffled'"))
    out_N = torch.where(attempts.whole_N, torch.zeros_like(x.reward_N), x.reward_N)
    for group in x.group_N.unique().tolist():
        first = ((x.group_N == group) & attempts.first_N).nonzero().flatten().tolist()
        order = torch.Generator().manual_seed(key(0, "gigpo_shuffled", f"{progress:.9f}", int(group)))
        for place, other in zip(first, torch.randperm(len(first), generator=order).tolist(), strict=True):
            mine = (attempts.trajectory_N == attempts.trajectory_N[place]).nonzero().flatten().tolist()
            out_N[max(mine, key=lambda n: int(turn_N[n]))] = total_N[first[other]]
    return out_N


@advantage("gigpo_shuffled", needs=("trajectory_N", "turn_N", "state_N", "progress"))
def gigpo_shuffled(x: AdvantageInputs, *, gamma: float = 0.95, w: float = 1.0) -> Tensor:
    """GiGPO's advantages [N] of returns that belong to other attempts of the group.

    Raises:
        ValueError: as `gigpo`.
    """
    attempts = Attempts.of(x, "advantage 'gigpo_shuffled'")
    return gigpo(dataclasses.replace(x, reward_N=dealt(x, attempts)), gamma=gamma, w=w)
