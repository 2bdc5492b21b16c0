"""ExPO's imitation term: the likelihood of an explanation that leads to the answer. arXiv:2507.02834, the last term of ExP-GRPO.

    -log pi(explanation, answer | question), added to GRPO with a weight

on the rows that a strategy injects: `demonstration` gives a trace of the row, `offpolicy_gt` the answer behind the best own thought. The
question in the loss has no answer in it. Ours: the paper asks the policy itself for explanations, given the answer, and anneals the weight;
here the traces come from the strategy and the weight of the recipe is constant (0.1 is a beginning). Rows of the policy get 0.
"""

from __future__ import annotations

import torch

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import auxiliary_loss


@auxiliary_loss("expo", paper="arXiv:2507.02834", needs=("offpolicy_B",), needs_injected_rows=True)
def expo(x: LossInputs) -> LossOutput:
    """Minus the log-prob of the tokens of injected rows, 0 elsewhere. [B, T]"""
    given_BT = x.mask_BT & x.need("offpolicy_B", "expo")[:, None]
    return LossOutput(-ratio.inside(x.logp_BT, given_BT), {"tokens": (given_BT.sum(), torch.ones((), dtype=torch.int64))})
