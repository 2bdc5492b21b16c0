"""EGPO: surprising reasoning earns a bonus that never outweighs the advantage. After arXiv:2508.05118 (function calls).

The abstract: the entropy of the thought enters the advantage, and a clip keeps the bonus from turning the direction; with a strict 0/1
reward. A' = A + min(alpha H, |A| / kappa), H the mean entropy of the answer's tokens without gradient.

Ours, as the formula could not be read: its form and constants, alpha 0.4 and kappa 2, which are those of arXiv:2506.14758; the entropy is
over the whole answer; an advantage of 0 stays 0. With kappa above 1 the sign of an advantage stays what it was.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight


@reweight("egpo_proposed", paper="arXiv:2508.05118", needs=("entropy_NT",))
def egpo_proposed(x: AdvantageInputs, adv_N: Tensor, *, alpha: float = 0.4, kappa: float = 2.0) -> Tensor:
    """Advantages plus `alpha` times the answer's mean token entropy, at most 1 / `kappa` of the advantage. [N]

    Raises:
        ValueError: a negative alpha, kappa not above 1, or no entropies.
    """
    if alpha < 0 or kappa <= 1:
        raise ValueError(f"reweight 'egpo_proposed': needs alpha {alpha} >= 0 and kappa {kappa} > 1")
    entropy_NT = need(x, "entropy_NT", "reweight 'egpo_proposed'").double()
    inside_NT = torch.arange(entropy_NT.shape[1])[None, :] < x.length_N[:, None]
    mean_N = torch.where(inside_NT, entropy_NT, torch.zeros_like(entropy_NT)).sum(dim=1) / x.length_N.clamp(min=1)
    return adv_N + torch.minimum(alpha * mean_N, adv_N.abs() / kappa)
