"""Only the tokens of highest entropy train: the forking tokens of "Beyond the 80/20 Rule". arXiv:2506.01939, section 5.

    A[i, t] <- A[i, t] * 1[H(i, t) >= q],  q the (1 - share) quantile of the entropies of the step's response tokens

with share 0.2 in the paper. H is the entropy of the policy before the step's updates; tokens of all groups are compared together.

Ours: the quantile is over the rows of this rank that this method sees (the paper's batch), rows without any advantage included. Tokens
that are dropped keep their place in the denominator of the loss, as in the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight


@reweight("high_entropy", paper="arXiv:2506.01939", needs=("entropy_NT",), per="token")
def high_entropy(x: AdvantageInputs, adv_NT: Tensor, *, share: float = 0.2) -> Tensor:
    """Keep token advantages where the policy's entropy is among the highest `share` of the batch.

    Returns:
        [n, T]; 0 elsewhere.

    Raises:
        ValueError: a share outside (0, 1], or no entropies.
    """
    if not 0 < share <= 1:
        raise ValueError(f"reweight 'high_entropy': share is {share}, must be in (0, 1]")
    entropy_NT = need(x, "entropy_NT", "reweight 'high_entropy'")
    # [N, T], true for response tokens; M of them in all are ranked together
    inside_NT = torch.arange(entropy_NT.shape[1])[None, :] < x.length_N[:, None]
    values_M = entropy_NT[inside_NT]
    kept = max(1, round(share * len(values_M))) if len(values_M) else 0
    if kept == len(values_M):
        return adv_NT
    # tokens that tie with the last one that is kept stay too
    bound = values_M.sort(descending=True).values[kept - 1]
    return torch.where(inside_NT & (entropy_NT >= bound), adv_NT, torch.zeros_like(adv_NT))
