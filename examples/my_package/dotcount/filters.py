"""Drop rollouts that are too short to be an answer."""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import rollout_filter


@rollout_filter("at_least", unit="rollout")
def at_least(x: AdvantageInputs, *, tokens: int = 4) -> tuple[Tensor, str]:
    """Keep the rollouts with at least so many tokens. Gives (rollouts that stay, bool [N]; reason for the log).

    Raises:
        ValueError: tokens below 1.
    """
    if tokens < 1:
        raise ValueError(f"filter 'at_least': tokens is {tokens}; it must be at least 1")
    return x.length_N >= tokens, "too_short"
