"""DAPO's soft overlong punishment. arXiv:2503.14476, eq. 13.

With a limit of M tokens and a buffer of B: 0 up to M - B, then -factor * (L - (M - B)) / B, down to -factor at M. Added to a column.

Ours: -factor beyond M, where M does not cut responses off. Whether cut-off responses train at all is a question of the loss mask.
The defaults are those of the authors' text model: set `maximum` to the recipe's own limit on new tokens.
"""

from __future__ import annotations

from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, with_column
from vlmrl.algo.registries import reward_shaping


def penalty(length: Tensor, *, maximum: int, buffer: int, factor: float) -> Tensor:
    """Elementwise, float64 in [-factor, 0], for lengths in tokens."""
    over = (length.double() - (maximum - buffer)) / buffer
    return -factor * over.clamp(min=0, max=1)


@reward_shaping("soft_overlong", paper="arXiv:2503.14476")
def soft_overlong(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    maximum: int = 20480,
    buffer: int = 4096,
    factor: float = 1.0,
) -> Tensor:
    """Punish responses that come within `buffer` tokens of `maximum`."""
    if not 0 < buffer <= maximum or factor < 0:
        raise ValueError(
            f"reward_shaping 'soft_overlong': maximum {maximum}, buffer {buffer}, factor {factor}; "
            "needs 0 < buffer <= maximum and factor >= 0"
        )
    k = column_index(x, reward)
    return with_column(rewards_NK, k, rewards_NK[:, k] + penalty(x.length_N, maximum=maximum, buffer=buffer, factor=factor))
