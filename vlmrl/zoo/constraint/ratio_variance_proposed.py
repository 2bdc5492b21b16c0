"""R2VPO's constraint on the variance of the ratio, with a multiplier that moves. After arXiv:2601.03320.

    maximise E[rho A] subject to E[(rho - 1)^2] <= delta;  lambda <- clip(lambda + eta (mean (rho - 1)^2 - delta), 0, high)

and lambda * (rho - 1)^2 is added to the loss, a mean over the minibatch's tokens. Ours: delta 0.01, eta 1, high 10, start 0; the
variance is that of the weights that an update starts from, so that it is 0 in the first update of a step, and lambda moves with every
update. Use loss `r2vpo` with `weight: 0`, which has no brake of its own, and several updates per step. The log-ratio is clamped to +-20.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from vlmrl.algo import ratio
from vlmrl.algo.constraint.registry import PartialMean, constraint
from vlmrl.algo.inputs import LossInputs

KEY = "multiplier"


def away(x: LossInputs) -> Tensor:
    """(rho - 1)^2, 0 outside the mask. [B, T]"""
    return (ratio.token_ratio(x) - 1).square()


def measure(x: LossInputs) -> dict[str, PartialMean]:
    """Sum and number over the minibatch's tokens of this rank."""
    return {KEY: PartialMean(float(away(x).sum()), int(x.mask_BT.sum()))}


def term(x: LossInputs, dual: Mapping[str, float], measured: Mapping[str, PartialMean]) -> Tensor:
    """The multiplier times the squared distance of each ratio, over the tokens of all ranks; its plain sum is added to the loss. [B, T]"""
    seen = measured.get(KEY, PartialMean(0.0, 0))
    return away(x) * (dual[KEY] / max(1, seen.count))


@constraint("ratio_variance_proposed", paper="arXiv:2601.03320", acts_on="loss", needs_updates_per_step=2, measure=measure, term=term)
def ratio_variance_proposed(
    dual: Mapping[str, float],
    measured: Mapping[str, PartialMean],
    *,
    delta: float = 0.01,
    eta: float = 1.0,
    start: float = 0.0,
    high: float = 10.0,
) -> dict[str, float]:
    """The multiplier after an update: larger while the variance is above `delta`, smaller below it.

    Raises:
        ValueError: an argument is out of range.
    """
    if delta <= 0 or eta < 0 or not 0 <= start <= high:
        raise ValueError(
            f"constraint 'ratio_variance_proposed': needs delta {delta} > 0, eta {eta} >= 0 and 0 <= start {start} <= high {high}"
        )
    value, seen = dual.get(KEY, start), measured.get(KEY, PartialMean(0.0, 0))
    return {KEY: min(max(value + eta * (seen.mean - delta), 0.0), high) if seen.count else value}
