"""A KL coefficient that steers the divergence from the reference to a target. Ziegler et al., arXiv:1909.08593, section 2.2.

    e = clip((KL - target) / target, -clip, clip);  beta <- beta * (1 + gain * e)

with clip 0.2 and gain 0.1 in the paper. Ours: beta stays within [low, high], and does not move where the step measured nothing. The
unit of `target` is that of the measurement: nats per token with a mean over tokens, nats per answer with a mean over answers.

The trainer stores the dual {"kl": beta}, uses `dual["kl"]` as `beta` of the step, and afterwards calls the update with
{"kl": PartialMean(sum, count)} of the divergence over all ranks. A reference is needed even while beta is small.
"""

from __future__ import annotations

from collections.abc import Mapping

from vlmrl.algo.constraint.registry import PartialMean, constraint

KEY = "kl"


@constraint("adaptive_kl", paper="arXiv:1909.08593", acts_on="beta")
def adaptive_kl(
    dual: Mapping[str, float],
    measured: Mapping[str, PartialMean],
    *,
    target: float,
    start: float = 0.001,
    gain: float = 0.1,
    clip: float = 0.2,
    low: float = 1e-6,
    high: float = 1.0,
) -> dict[str, float]:
    """Raise the KL coefficient where the divergence is above its target, lower it below.

    Returns:
        {"kl": the coefficient after the step}.
    """
    if target <= 0 or gain < 0 or clip < 0 or gain * clip >= 1 or not 0 < low <= start <= high:
        raise ValueError(
            f"constraint 'adaptive_kl': needs target {target} > 0, gain {gain} * clip {clip} in [0, 1) and "
            f"0 < low {low} <= start {start} <= high {high}"
        )
    beta, seen = dual.get(KEY, start), measured.get(KEY, PartialMean(0.0, 0))
    if seen.count == 0:
        return {KEY: beta}
    # e = clip((KL - target) / target), beta <- beta (1 + gain e), within [low, high]
    error = min(max(seen.mean / target - 1, -clip), clip)
    return {KEY: min(max(beta * (1 + gain * error), low), high)}
