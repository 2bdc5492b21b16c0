"""HiMAC: plans compared with plans, executions of a plan with each other. arXiv:2603.00977, with one policy in both roles.

    macro (the answers before the second fork):  z-score of R(plan) over the plans of the task, R(plan) = mean over its executions
    micro (what stands behind it):               z-score of the return over the executions of the same plan

With `rollout.forks: {1: E}` the first answer of an attempt is its plan, and each plan is executed E times. `role` says which of the two
trains; the paper trains them in turn, which is two stages of a recipe.

Proposed: only the abstract was read. The z-score is that of GRPO (sample deviation, epsilon). A plan is a row for each execution, and its
advantage is shared out among them. An attempt with a turn that nothing judged gets 0 and is no part of it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vlmrl.algo.branches import Branches
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage
from vlmrl.algo.rules import needs_environment


@advantage(
    "himac_proposed",
    paper="arXiv:2603.00977",
    needs=("trajectory_N", "turn_N", "node_N"),
    scale="deviation",
    refuses=needs_environment("advantage 'himac_proposed'"),
)
def himac_proposed(x: AdvantageInputs, *, role: Literal["both", "macro", "micro"] = "both", epsilon: float = 1e-6) -> Tensor:
    """z-score of a branch among those of its fork, for plans (the first fork), executions (behind it), or both.

    Raises:
        ValueError: a need that is missing, or an attempt in several groups.
    """
    found = Branches.of(x, "advantage 'himac_proposed'")
    score_N = (found.value_N - found.fork_N) / (found.deviation_N + epsilon) / found.copies_N
    trains_N = {"both": found.depth_N > 0, "macro": found.depth_N == 1, "micro": found.depth_N > 1}[role]
    return torch.where(trains_N & (found.deviation_N > 0), score_N, torch.zeros_like(score_N)).detach()
