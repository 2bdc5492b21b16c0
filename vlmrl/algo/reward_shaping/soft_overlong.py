"""DAPO's soft overlong punishment. arXiv:2503.14476, eq. 13.

With a limit of M tokens and a buffer of B: 0 up to M - B, then -factor * (L - (M - B)) / B, down to -factor at M. Added to a column.

Ours: -factor beyond M, where M does not cut responses off. Whether cut-off responses train at all is a question of the loss mask.
The defaults are those of the authors' text model: set `maximum` to the recipe's own limit on new tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, with_column
from vlmrl.algo.registries import reward_shaping

MAXIMUM, BUFFER = 20480, 4096


def penalty(length: Tensor, *, maximum: int, buffer: int, factor: float) -> Tensor:
    """Compute the punishment of each length in tokens, elementwise.

    Returns:
        float64 in [-factor, 0], of the shape of `length`.
    """
    # eq. 13: ((L_max - L_cache) - |y|) / L_cache within the buffer, with the sign turned
    over = (length.double() - (maximum - buffer)) / buffer
    return -factor * over.clamp(min=0, max=1)


def _never_reached(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    maximum, buffer = arguments.get("maximum", MAXIMUM), arguments.get("buffer", BUFFER)
    longest = stage.rollout.max_new_tokens
    if isinstance(maximum, int) and isinstance(buffer, int) and maximum - buffer >= longest:
        begins = f"begins at {maximum - buffer} tokens (maximum {maximum} less buffer {buffer})"
        text = f"reward_shaping 'soft_overlong' {begins} and answers end at rollout.max_new_tokens ({longest}), so it would do nothing"
        yield f"{text}; set maximum to {longest} and buffer below it"


@reward_shaping("soft_overlong", paper="arXiv:2503.14476", refuses=_never_reached)
def soft_overlong(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    maximum: int = MAXIMUM,
    buffer: int = BUFFER,
    factor: float = 1.0,
) -> Tensor:
    """Punish responses that come within `buffer` tokens of `maximum`.

    Returns:
        Rewards [N, K].
    """
    if not 0 < buffer <= maximum or factor < 0:
        raise ValueError(
            f"reward_shaping 'soft_overlong': maximum {maximum}, buffer {buffer}, factor {factor}; "
            "needs 0 < buffer <= maximum and factor >= 0"
        )
    k = column_index(x, reward)
    return with_column(rewards_NK, k, rewards_NK[:, k] + penalty(x.length_N, maximum=maximum, buffer=buffer, factor=factor))
