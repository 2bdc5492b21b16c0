"""HiMAC's co-evolution: planner and executor train in turn, each while the other stands still. After arXiv:2603.00977.

The stage is cut into `phases` of equal length. In the first, third, ... only plans train (question 1 of a group), in the others only the
answers that follow them. For strategy `himac_proposed`. Ours: the number of phases, and that a row without a plan trains in neither.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight
from vlmrl.algo.rules import needs_strategy

NAME = "reweight 'himac_proposed'"


@reweight("himac_proposed", paper="arXiv:2603.00977", needs=("question_N",), refuses=needs_strategy(NAME, "himac_proposed"))
def himac_proposed(x: AdvantageInputs, adv_N: Tensor, *, phases: int = 10) -> Tensor:
    """Advantages of plans in even phases and of their answers in odd ones, counted from 0; the others are 0. [N]

    Raises:
        ValueError: fewer than two phases.
    """
    if phases < 2:
        raise ValueError(f"{NAME}: phases is {phases}; it must be at least 2")
    question_N = need(x, "question_N", NAME)
    plans = min(int(x.progress * phases), phases - 1) % 2 == 0
    return torch.where((question_N == 1) if plans else (question_N > 1), adv_N, torch.zeros_like(adv_N))
