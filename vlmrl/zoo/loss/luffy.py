"""LUFFY: own answers and a teacher's traces in one group, with policy shaping for the traces. arXiv:2504.14945.

Rows that the policy did not sample (`offpolicy_B`): loss = -f(pi) * A with f(pi) = pi / (pi + gamma), pi the current probability; the
teacher's probability is taken as 1. Coefficient A * gamma * pi / (pi + gamma)^2, largest at pi = gamma: unlikely tokens of a good
trace are not ignored. Own rows: loss = -rho * A, without a clip, as in the authors' script; `clip_low` and `clip_high` add it.
As in the script: gamma 0.1, the reducer `fixed_length`, an advantage that is not divided by the deviation, no clip for the traces.
A trace with a bad reward pushes its tokens down; drop it before the update. Traces enter no metric of own rows.
Ours: the log-ratio of own rows is clamped to +-20 before exp, and a log-prob above 0 counts as 0.
"""

from __future__ import annotations

import math

import torch

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss(
    "luffy",
    paper="arXiv:2504.14945",
    needs=("offpolicy_B",),
    unscaled=True,
    needs_injected_rows=True,
    wants={"reduce": ("fixed_length",)},
)
def luffy(x: LossInputs, *, gamma: float = 0.1, clip_low: float | None = None, clip_high: float | None = None) -> LossOutput:
    """Importance-weighted policy gradient on own rows, shaped likelihood on traces. [B, T]

    Raises:
        ValueError: `offpolicy_B` is None; gamma not above 0; one clip bound without the other.
    """
    if gamma <= 0:
        raise ValueError(f"policy_loss 'luffy': gamma is {gamma}; it must be above 0")
    if (clip_low is None) != (clip_high is None):
        raise ValueError("policy_loss 'luffy': give both clip_low and clip_high, or neither for no clip")
    trace_BT = x.mask_BT & x.need("offpolicy_B", "luffy")[:, None]
    own_BT = x.mask_BT & ~trace_BT
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    # old log-probs of traces may be NaN: nothing sampled them
    log_ratio_BT = ratio.inside(x.logp_BT, own_BT) - ratio.inside(x.logp_old_BT, own_BT)
    ratio_BT = log_ratio_BT.clamp(-ratio.MAX_LOG_RATIO, ratio.MAX_LOG_RATIO).exp()
    low = 0.0 if clip_low is None else 1 - clip_low
    high = math.inf if clip_high is None else 1 + clip_high
    own_loss_BT = ratio.min_clip(ratio_BT, adv_BT, low, high)
    pi_BT = ratio.inside(x.logp_BT, trace_BT).clamp(max=0).exp()
    trace_loss_BT = -pi_BT / (pi_BT + gamma) * adv_BT
    metrics = ratio.clip_metrics(ratio_BT, ratio.inside(adv_BT, own_BT), own_BT, low, high)
    metrics["luffy/trace_probability"] = (ratio.inside(pi_BT, trace_BT).sum().detach(), trace_BT.sum())
    return LossOutput(torch.where(trace_BT, trace_loss_BT, own_loss_BT), metrics)
