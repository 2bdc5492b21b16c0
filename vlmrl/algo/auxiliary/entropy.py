"""The entropy bonus of policy gradients. Williams and Peng, 1991; in this form A3C, arXiv:1602.01783, section 4.

    L = L_policy - weight * mean H(pi(. | s_t))

over the vocabulary, exactly (not the surprise of the sampled token), averaged over tokens as the policy loss is. The recipe's `weight`
of the auxiliary loss is its coefficient: positive keeps the policy random, negative sharpens it.
"""

from __future__ import annotations

from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import auxiliary_loss


@auxiliary_loss("entropy_bonus", paper="arXiv:1602.01783", needs=("entropy_BT",))
def entropy_bonus(x: LossInputs) -> LossOutput:
    """Subtract the entropy of the policy at each token from the loss.

    Returns:
        Loss [B, T], in nats, with gradient.
    """
    return LossOutput(-x.need("entropy_BT", "entropy_bonus"))
