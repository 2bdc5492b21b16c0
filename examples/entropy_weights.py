"""A method from outside the package that needs token entropies and remembers: tokens count by how unsure the policy is, for its habits.

    A[i, t] <- A[i, t] * clip(1 + strength * (H(i, t) - mean) / std, 0, most)

mean and std are those of all token entropies that the stage has seen before this step, so a step with unusually sure answers pushes less.
The first step, which has nothing to compare with, keeps its advantages. H comes from a provider because the method says that it needs
`entropy_NT`; the three running sums are its memory, a tensor in every checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import need
from vlmrl.algo.registries import reweight


def update(state: Mapping[str, Any], x: AdvantageInputs) -> dict[str, Tensor]:
    """The memory after a step: {"sums": [tokens, sum of H, sum of H^2]}, over all ranks' rollouts."""
    entropy_NT = need(x, "entropy_NT", "reweight 'entropy_weights'").double()
    values_M = entropy_NT[torch.arange(entropy_NT.shape[1])[None, :] < x.length_N[:, None]]
    seen = torch.stack([torch.tensor(float(len(values_M)), dtype=torch.float64), values_M.sum(), values_M.square().sum()])
    return {"sums": state["sums"] + seen if "sums" in state else seen}


@reweight("entropy_weights", needs=("entropy_NT",), per="token", remembers=update)
def entropy_weights(x: AdvantageInputs, adv_NT: Tensor, *, strength: float = 0.5, most: float = 2.0) -> Tensor:
    """Token advantages times how much more unsure the policy is there than it has been on average. [n, T]

    Raises:
        ValueError: no entropies, strength below 0 or most below 1.
    """
    if strength < 0 or most < 1:
        raise ValueError(f"reweight 'entropy_weights': needs strength {strength} >= 0 and most {most} >= 1")
    entropy_NT = need(x, "entropy_NT", "reweight 'entropy_weights'").double()
    if not x.memory:
        return adv_NT
    tokens, total, squares = x.memory["sums"].unbind()
    mean = total / tokens.clamp(min=1)
    std = (squares / tokens.clamp(min=1) - mean.square()).clamp(min=1e-12).sqrt()
    return adv_NT * (1 + strength * (entropy_NT - mean) / std).clamp(0.0, most).to(adv_NT.dtype)
