"""The only place where a matrix of token losses becomes a number. Numerator and denominator come from the same mask.

A reducer gives weights and a count; the loss of a step is sum(loss * weight) / sum(count), both over all its micro-batches and
ranks, so any split gives the same gradient. Rows with an empty mask count nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vlmrl.algo.inputs import Reduction
from vlmrl.algo.registries import reducer


def _rows(mask_BT: Tensor) -> Tensor:
    return mask_BT.any(dim=1).sum().double()


@reducer("seq_mean", paper="arXiv:2402.03300")
def seq_mean(mask_BT: Tensor) -> Reduction:
    """GRPO: mean over rows of the mean over their tokens. A token of a short answer weighs more."""
    return Reduction(mask_BT.double() / mask_BT.sum(dim=1, keepdim=True).clamp(min=1), _rows(mask_BT))


def _weakens_brevity(arguments: Mapping[str, Any], stage: Any) -> Iterator[str]:
    if stage.answer_format == "think_or_not":
        yield "reduce 'token_mean' weakens the push to short answers that answer_format 'think_or_not' relies on; seq_mean keeps it"


@reducer("token_mean", paper="arXiv:2503.14476", doubts=_weakens_brevity)
def token_mean(mask_BT: Tensor) -> Reduction:
    """DAPO: mean over all tokens of the step."""
    return Reduction(mask_BT.double(), mask_BT.sum().double())


@reducer("fixed_length", paper="arXiv:2503.20783")
def fixed_length(mask_BT: Tensor, *, length: int) -> Reduction:
    """Dr.GRPO: sum over tokens by a constant (the longest allowed answer, not the longest of the batch), mean over rows.

    Raises:
        ValueError: `length` below 1.
    """
    if length < 1:
        raise ValueError(f"reduce 'fixed_length': length is {length}; it must be at least 1, the longest allowed answer in tokens")
    return Reduction(mask_BT.double() / length, _rows(mask_BT))


@reducer("seq_sum", paper="Williams 1992, REINFORCE")
def seq_sum(mask_BT: Tensor) -> Reduction:
    """Mean over rows of the sum over their tokens: the gradient of whole-answer log-probs. A long answer weighs more."""
    return Reduction(mask_BT.double(), _rows(mask_BT))
