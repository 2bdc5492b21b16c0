"""Every attempt weighs the same, however long: advantages times (mean tokens of an attempt) / (tokens of this attempt). Ours.

With `reduce: token_mean` the policy's loss is then the mean over attempts of the mean over an attempt's tokens. A mean over turns would
weigh attempts by their number of turns, and pay talk; `token_mean` alone weighs them by their tokens, and makes failures that ramble the
loudest. The loss of a token is proportional to its advantage wherever a ratio is clipped, so weighing the advantage weighs the loss. The
divergence and auxiliary losses stay means over tokens.

Attempts of one turn each are answers, and this is then `seq_mean`. An attempt with a turn that nothing judged keeps what it has, and
does not count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vlmrl.algo import segments
from vlmrl.algo.attempts import Attempts
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.algo.registries import reweight
from vlmrl.algo.rules import names


def _needs_token_mean(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    if "token_mean" not in names(stage, "reduce"):
        yield "reweight 'trajectory_mean' makes a mean over attempts out of the mean over all tokens: set reduce: {name: token_mean}"


@reweight("trajectory_mean", needs=("trajectory_N",), refuses=_needs_token_mean)
def trajectory_mean(x: AdvantageInputs, adv_N: Tensor) -> Tensor:
    """Weigh advantages so that with `token_mean` every attempt counts the same.

    Returns:
        One number per turn, [N].

    Raises:
        ValueError: no `trajectory_N`.
    """
    # the group is of no matter here: an attempt's turns may be rows of different questions
    attempts = Attempts.of(dataclasses.replace(x, group_N=torch.zeros_like(x.group_N)), "reweight 'trajectory_mean'")
    length_N = x.length_N.double()
    # A <- A * (mean tokens of an attempt) / (tokens of this attempt)
    tokens_N = (segments.mean(length_N, attempts.trajectory_N, attempts.whole_N) * attempts.steps_N).clamp(min=1)
    counted = attempts.first_N.sum().clamp(min=1)
    mean = length_N[attempts.whole_N].sum() / counted
    return torch.where(attempts.whole_N, adv_N * mean / tokens_N, adv_N)
