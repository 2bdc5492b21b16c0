"""An auxiliary loss from outside the package: half the squared distance of log-probs to those of the stage's starting weights.

    L = L_policy + weight * mean of (log pi(y_t) - log pi_ref(y_t))^2 / 2

Its gradient pulls each token's log-prob back in proportion to how far it has gone; unlike the divergence (`beta`) it does not depend on
which estimator is named. It says that it needs `logp_ref_BT`, so the stage keeps its starting weights and computes them.
"""

from __future__ import annotations

import torch

from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import auxiliary_loss


@auxiliary_loss("anchor", needs=("logp_ref_BT",))
def anchor(x: LossInputs, *, free: float = 0.0) -> LossOutput:
    """Half the squared distance to the reference's log-prob, beyond the `free` nats that cost nothing.

    Raises:
        ValueError: free below 0, or no reference.
    """
    if free < 0:
        raise ValueError(f"auxiliary_loss 'anchor': free is {free}, must not be negative")
    away_BT = (x.logp_BT - x.need("logp_ref_BT", "anchor")).abs() - free
    inside_BT = torch.where(x.mask_BT, away_BT, torch.zeros_like(away_BT)).clamp(min=0.0)
    return LossOutput(0.5 * inside_BT.square(), {"far": ((inside_BT > 0).sum().detach(), x.mask_BT.sum())})
