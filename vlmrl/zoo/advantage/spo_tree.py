"""SPO-tree: what a branch of the tree of attempts is worth beyond what it forked off. arXiv:2505.23564, with turns for segments.

    V(leaf) = return of the attempt,   V(branch) = mean of V over the branches that it forks into
    A = V(branch) - V(fork that it comes from)

on every turn of the branch; turns in front of the first fork get 0. Attempts that part at their first answer and nowhere later have the
return minus the mean over the group's.

Ours: a branch is the turns between two forks, where the paper cuts answers into segments of tokens. A turn that several attempts have in
common is a row for each of them; its advantage is shared out among these rows, so that it counts once. An attempt with a turn that nothing
judged gets 0 and is no part of the tree.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import advantage
from vlmrl.algo.rules import needs_environment
from vlmrl.zoo.branches import Branches


@advantage(
    "spo_tree",
    paper="arXiv:2505.23564",
    needs=("trajectory_N", "turn_N", "node_N"),
    refuses=needs_environment("advantage 'spo_tree'"),
)
def spo_tree(x: AdvantageInputs) -> Tensor:
    """Value of the branch minus that of the fork that it comes from.

    Raises:
        ValueError: a need that is missing, or an attempt in several groups.
    """
    found = Branches.of(x, "advantage 'spo_tree'")
    return ((found.value_N - found.fork_N) / found.copies_N).detach()
