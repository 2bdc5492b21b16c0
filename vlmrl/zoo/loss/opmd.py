"""OPMD: the off-policy reading of group REINFORCE, from the optimum of a KL-regularised objective. arXiv:2501.12599, arXiv:2505.17826.

At that optimum r_i - tau * d_i is equal for all answers of a group (d_i: log-ratio of the whole answer), whoever sampled them.
`regression`: loss = -A * d + (tau / 2) * (d - mean_g d)^2, whose coefficient is A - tau * (d - mean_g d). With A = r - mean_g r it is,
up to the factor tau, the gradient of half the variance of r - tau * d within the group; at d = 0 it is REINFORCE.
`scaled`: loss = -A * logp / (1 + tau), coefficient A / (1 + tau), as Trinity-RFT has it.
Use an advantage that is not divided by the deviation, and the reducer `seq_sum`, which is what makes d a sum over tokens.
Ours: the per-token form (straight through, as in GSPO-token); d and its tokens are clamped to +-20.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


def _updates(arguments: Mapping[str, Any]) -> int:
    """The regression is plain REINFORCE while all log-ratios are 0; the scaled form has no ratio."""
    return 2 if arguments["form"] == "regression" else 1


@policy_loss(
    "opmd",
    paper="arXiv:2505.17826",
    needs=("score_mean_B",),
    score="log_ratio_sum",
    unscaled=True,
    needs_updates_per_step=_updates,
    wants={"reduce": ("seq_sum",)},
    wants_why="the pull would depend on the answer's length",
)
def opmd(x: LossInputs, *, tau: float = 1.0, form: Literal["regression", "scaled"] = "regression") -> LossOutput:
    """Group REINFORCE with a pull of each answer's log-ratio to its group's mean. [B, T]

    Raises:
        ValueError: tau below 0; `regression` without `score_mean_B`.
    """
    if tau < 0:
        raise ValueError(f"policy_loss 'opmd': tau is {tau}; it must not be below 0")
    adv_BT = ratio.inside(x.adv_BT, x.mask_BT)
    ratio_sum_B = ratio.sum_log_ratio(x).detach()
    metrics = {"log_ratio/sum": (ratio_sum_B.sum(), x.mask_BT.any(dim=1).sum())}
    if form == "scaled":
        return LossOutput(-adv_BT * ratio.inside(x.logp_BT, x.mask_BT) / (1 + tau), metrics)
    mean_B = x.need("score_mean_B", "opmd").detach().to(x.logp_BT)
    log_ratio_BT = ratio.straight_through(ratio_sum_B, x)
    return LossOutput(-adv_BT * log_ratio_BT + tau / 2 * (log_ratio_BT - mean_B[:, None]).square(), metrics)
