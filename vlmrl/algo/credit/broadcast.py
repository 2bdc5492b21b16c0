"""Every token of a rollout gets the rollout's advantage: what GRPO and its relatives do."""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import credit


@credit("broadcast", paper="arXiv:2402.03300")
def broadcast(x: AdvantageInputs, adv_N: Tensor, mask_NT: Tensor) -> Tensor:
    """Give every response token the advantage of its rollout.

    Returns:
        [N, T]; 0 outside the mask.
    """
    return torch.where(mask_NT, adv_N[:, None], torch.zeros_like(adv_N[:, None]))
