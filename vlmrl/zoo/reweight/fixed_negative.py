"""One fixed negative advantage for tokens that the policy found unlikely, without teacher or reward. arXiv:2608.31046, its abstract.

    A'_t = -size where pi(y_t) < below, else 0

The paper says that on-policy distillation learns at tokens of low log-probability, and that a single fixed negative advantage does as well
as the teacher's: a control for `distill`. pi is the policy before the step's updates. In expectation over the policy the same advantage
for all tokens has no gradient (that of a sum of probabilities); with the bound it lowers the probability that an unlikely token is drawn.

Ours: the bound, since the abstract gives none. Where it is 1 all tokens count. The advantage of the rewards is replaced, not added to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight


@reweight("fixed_negative", paper="arXiv:2608.31046", needs=("logp_NT",), per="token", moves_signs=True)
def fixed_negative(x: AdvantageInputs, adv_NT: Tensor, *, size: float = 1.0, below: float = 0.2) -> Tensor:
    """Give -`size` to tokens whose probability is below `below`, and 0 to all others, in the place of their advantage. [n, T]

    Raises:
        ValueError: a size that is not positive, a bound outside (0, 1], or no log-probs.
    """
    if not (size > 0 and 0 < below <= 1):
        raise ValueError(f"reweight 'fixed_negative': needs size {size} > 0 and 0 < below {below} <= 1")
    logp_NT = need(x, "logp_NT", "reweight 'fixed_negative'")[:, : adv_NT.shape[1]]
    unlikely_NT = logp_NT.double().exp() < below if below < 1 else torch.ones(logp_NT.shape, dtype=torch.bool)
    inside_NT = torch.arange(logp_NT.shape[1])[None, :] < x.length_N[:, None]
    return torch.where(unlikely_NT & inside_NT, torch.full_like(adv_NT, -size), torch.zeros_like(adv_NT))
