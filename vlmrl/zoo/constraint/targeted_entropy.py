"""Targeted entropy regularisation of Confucius3-Math: the policy's entropy is pulled to a number. arXiv:2506.18330, the technical report.

weight * |H - target| is added to the loss, H the mean token entropy of the batch; 0.001 and 0.55 in the report. The gradient raises H
below the target and lowers it above. Ours: which side H is on is measured on the whole minibatch before its update, so that every split
into micro-batches has the same gradient; on the target it is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vlmrl.algo import ratio
from vlmrl.algo.constraint.registry import PartialMean, constraint
from vlmrl.algo.inputs import LossInputs

KEY = "entropy"


def measure(x: LossInputs) -> dict[str, PartialMean]:
    """Sum and number of the entropies of the minibatch's tokens of this rank."""
    return {KEY: PartialMean(float(ratio.inside(x.need("entropy_BT", "targeted_entropy"), x.mask_BT).sum()), int(x.mask_BT.sum()))}


def term(x: LossInputs, dual: Mapping[str, float], measured: Mapping[str, PartialMean]) -> Tensor:
    """The slope times each entropy, over the tokens of all ranks; its plain sum is added to the loss. [B, T]"""
    entropy_BT = ratio.inside(x.need("entropy_BT", "targeted_entropy"), x.mask_BT)
    return entropy_BT * (dual[KEY] / max(1, measured.get(KEY, PartialMean(0.0, 0)).count)) if dual[KEY] else torch.zeros_like(entropy_BT)


@constraint("targeted_entropy", paper="arXiv:2506.18330", acts_on="loss", needs=("entropy_BT",), measure=measure, term=term)
def targeted_entropy(
    dual: Mapping[str, float], measured: Mapping[str, PartialMean], *, target: float = 0.55, weight: float = 0.001
) -> dict[str, float]:
    """Slope of the penalty: `weight` where the entropy is above `target`, -`weight` below; `dual` is not read.

    Raises:
        ValueError: a negative argument.
    """
    if target < 0 or weight < 0:
        raise ValueError(f"constraint 'targeted_entropy': target {target} and weight {weight} must not be negative")
    seen = measured.get(KEY, PartialMean(0.0, 0))
    return {KEY: weight * ((seen.mean > target) - (seen.mean < target)) if seen.count else 0.0}
