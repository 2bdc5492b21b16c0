"""Reg-GRPO: regress the advantage of an answer by its log-ratio, without ratio or clip. After arXiv:2506.07464 (DeepVideo-R1).

loss = (eta / 2) * (A - (g - mean_g g) / eta)^2 with g the mean log-ratio of the answer's tokens. The coefficient is
A - (g - mean_g g) / eta: REINFORCE at the old policy, fading linearly, and 0 where the log-ratio has reached eta * A. The target of
the regression is the trust region. With the reducer `seq_mean` and advantages that sum to 0 in a group, the gradient is that of
the mean over answers of this loss.
Ours: the scale. The paper regresses on the log-ratio normalised by the group's own mean and deviation; that is 0/0 in the first
update, where all log-ratios are 0, so here a constant `eta` (our default: 0.05) replaces the deviation, and g is a mean over tokens.
Also ours: the per-token form (straight through, as in GSPO-token), and log-ratios of tokens clamped to +-20.
"""

from __future__ import annotations

from vlmrl.algo import ratio
from vlmrl.algo.inputs import LossInputs, LossOutput
from vlmrl.algo.registries import policy_loss


@policy_loss("reg_grpo_proposed", paper="arXiv:2506.07464", needs=("score_mean_B",), score="log_ratio", needs_updates_per_step=2)
def reg_grpo_proposed(x: LossInputs, *, eta: float = 0.05) -> LossOutput:
    """Squared error between the advantage and the centred log-ratio over eta; the scale eta is our guess. [B, T]

    Raises:
        ValueError: eta not above 0; `score_mean_B` is None.
    """
    if eta <= 0:
        raise ValueError(f"policy_loss 'reg_grpo_proposed': eta is {eta}; it must be above 0")
    mean_B = x.need("score_mean_B", "reg_grpo_proposed").detach().to(x.logp_BT)
    log_ratio_BT = ratio.straight_through(ratio.mean_log_ratio(x), x)
    error_BT = ratio.inside(x.adv_BT, x.mask_BT) - (log_ratio_BT - mean_B[:, None]) / eta
    squared = ratio.inside(error_BT.detach().square(), x.mask_BT).sum()
    return LossOutput(eta / 2 * error_BT.square(), {"reg_grpo_proposed/error": (squared, x.mask_BT.sum())})
