"""Corrections for a verifier that errs at known rates. arXiv:2510.00915.

rho0 = P(observed 1 | wrong), rho1 = P(observed 0 | right). Backward: (r - rho0) / (1 - rho0 - rho1), whose mean given the truth is
the truth. Forward, which needs rho1 only: rho1 - 1 for an observed 0 and rho1 for an observed 1, that is r - (1 - rho1), whose mean
given the truth is (1 - rho0 - rho1) (truth - 1).

Ours: both maps are affine, so with one pair of rates for all rollouts a z-score undoes them altogether and plain centring leaves a
constant factor. They change the update where rates differ within a group, which the paper's setting has and which here are rates of
their own for answers that could not be parsed, or with an advantage whose baseline is not a group mean. Graded rewards are mapped by
the same lines. How the authors combine this with group statistics was not to be found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.needs import column_index, need, with_column
from vlmrl.algo.registries import reward_shaping

LIMIT = 0.95
"""Rates that add up to this or more leave no signal to correct: the division would blow up noise twentyfold."""


def corrected(reward: Tensor, rho0: float, rho1: float, correction: Literal["backward", "forward"]) -> Tensor:
    """Elementwise; rho0: rate of false positives, rho1: of false negatives."""
    if min(rho0, rho1) < 0 or rho0 + rho1 >= LIMIT:
        raise ValueError(
            f"reward_shaping 'noisy_verifier': rates {rho0} (false positives) and {rho1} (false negatives) must not be "
            "negative and must add up to "
            f"less than {LIMIT}: such a verifier carries no signal"
        )
    return (reward - rho0) / (1 - rho0 - rho1) if correction == "backward" else reward - (1 - rho1)


def _one_pair_of_rates(arguments: Mapping[str, Any]) -> bool:
    """Whether the correction is the same linear map for all rewards."""
    return not any(key.startswith("unparsed_") and value is not None for key, value in arguments.items())


@reward_shaping(
    "noisy_verifier",
    paper="arXiv:2510.00915",
    needs=("answer_N",),
    linear=_one_pair_of_rates,
    remedy="give unparsed_false_positive and unparsed_false_negative",
)
def noisy_verifier(
    rewards_NK: Tensor,
    valid_N: Tensor,
    x: AdvantageInputs,
    *,
    reward: str,
    correction: Literal["backward", "forward"] = "backward",
    false_positive: float = 0.0,
    false_negative: float = 0.0,
    unparsed_false_positive: float | None = None,
    unparsed_false_negative: float | None = None,
) -> Tensor:
    """Correct a 0/1 column for the verifier's rates of error; answers that could not be parsed may have rates of their own.

    Raises:
        ValueError: rates without signal, or rates for unparsed answers where the inputs have no `answer_N`.
    """
    k = column_index(x, reward)
    out_N = corrected(rewards_NK[:, k], false_positive, false_negative, correction)
    if unparsed_false_positive is not None or unparsed_false_negative is not None:
        rho0 = false_positive if unparsed_false_positive is None else unparsed_false_positive
        rho1 = false_negative if unparsed_false_negative is None else unparsed_false_negative
        unparsed_N = need(x, "answer_N", "reward_shaping 'noisy_verifier' with rates for unparsed answers") < 0
        out_N = torch.where(unparsed_N, corrected(rewards_NK[:, k], rho0, rho1, correction), out_N)
    return with_column(rewards_NK, k, out_N)
