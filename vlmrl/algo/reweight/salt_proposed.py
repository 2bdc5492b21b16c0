"""SALT: turns that several attempts share get the mean of these attempts' advantages. After arXiv:2510.20022; the merge rule is ours.

Attempts at a task form a graph of states and actions. What many of them did alike says little about why one went well, so turns with the
same state, action and last `history` (state, action) pairs become one edge, and each gets the mean advantage of its attempts. A turn
that is its attempt's own keeps its advantage. The sum over all turns is preserved, and a turn that the whole group shares gets the mean.

The paper's abstract says that shared and distinct steps are told apart and advantages reassigned from the outcome alone; how edges merge
was not to be had. Turns without a state or a parsed action (-1), and turns that nothing judged, keep what they have. Works on whatever
the recipe's advantage gives; `trajectory` or `trajectory_loop` are meant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.attempts import before, joint
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight


@reweight("salt_proposed", paper="arXiv:2510.20022", needs=("trajectory_N", "turn_N", "state_N", "answer_N"))
def salt_proposed(x: AdvantageInputs, adv_N: Tensor, *, history: int = 3) -> Tensor:
    """Advantages of turns with equal state, action and recent history, replaced by their mean. One number per turn, [N].

    Raises:
        ValueError: history below 0, a need that is missing, or two rows of one turn.
    """
    if history < 0:
        raise ValueError(f"reweight 'salt_proposed': history is {history}; it must be at least 0")
    trajectory_N, turn_N, state_N, action_N = (
        need(x, field, "reweight 'salt_proposed'") for field in ("trajectory_N", "turn_N", "state_N", "answer_N")
    )
    last_N = torch.tensor(before(trajectory_N, turn_N, "reweight 'salt_proposed'"), dtype=torch.int64)
    known_N = x.valid_N & (state_N >= 0) & (action_N >= 0)
    edge_N = joint(x.group_N, state_N, action_N)
    key_N, past_N = edge_N, torch.arange(len(last_N))
    for _ in range(history):
        # the pair one turn further back; -1 where the attempt began before
        past_N = torch.where(past_N >= 0, last_N[past_N.clamp(min=0)], past_N)
        there_N = past_N >= 0
        key_N = joint(key_N, torch.where(there_N, edge_N[past_N.clamp(min=0)], torch.full_like(past_N, -1)))
        known_N = known_N & (~there_N | known_N[past_N.clamp(min=0)])
    return torch.where(known_N, segments.mean(adv_N, key_N, known_N), adv_N).detach()
