"""One registry per slot of the algorithm. Importing `vlmrl.algo` fills them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from vlmrl.algo.inputs import LossOutput, Reduction
from vlmrl.registry import Registry

advantage: Registry[Callable[..., Tensor]] = Registry("advantage")
"""(AdvantageInputs) -> [N]"""
credit: Registry[Callable[..., Tensor]] = Registry("credit")
"""(AdvantageInputs, adv [N], mask [N, T]) -> [N, T]"""
policy_loss: Registry[Callable[..., LossOutput]] = Registry("policy_loss")
"""(LossInputs) -> LossOutput. Extras: `needs`, the optional fields of LossInputs that it reads; `score`, the row score (a name in
`algo.ratio.SCORES`) whose group mean it reads as `score_mean_B`."""
group_loss: Registry[Callable[..., Tensor]] = Registry("group_loss")
"""(score [N], advantage [N], group [N], kl [N] or None, tokens [N] or None) -> scalar, of a whole step. See `algo.group_loss.two_pass`."""
importance_correction: Registry[Callable[..., tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]]] = Registry("importance_correction")
"""(logp_old [B, T], logp_sampled [B, T], mask [B, T]) -> (weight [B, T] without gradient, metrics as (sum, count)). The weight
multiplies the token losses of the policy term, not the divergence."""
reducer: Registry[Callable[..., Reduction]] = Registry("reducer")
"""(mask [B, T]) -> Reduction"""
rollout_filter: Registry[Callable[..., tuple[Tensor, str]]] = Registry("filter")
"""(AdvantageInputs) -> (keep [N] bool, reason)"""
kl_estimator: Registry[Callable[..., Tensor]] = Registry("kl_estimator")
"""(logp [B, T], logp_ref [B, T]) -> [B, T]. One with the extra `needs=("logp_old_BT",)` takes logp_old [B, T] as a third argument;
without it old and current policy are taken to be the same."""
reward_shaping: Registry[Callable[..., Tensor]] = Registry("reward_shaping")
"""(rewards [N, K], valid [N], AdvantageInputs) -> rewards [N, K]"""
reweight: Registry[Callable[..., Tensor]] = Registry("reweight")
"""(AdvantageInputs, advantage) -> advantage. On advantages of rollouts [N] of all ranks, after the advantage and before credit; registered
with `per="token"` on token advantages [n, T] of this rank's rows, after credit (groups are whole on a rank). What it returns outside the
responses is not looked at."""
auxiliary_loss: Registry[Callable[..., LossOutput]] = Registry("auxiliary_loss")
"""(LossInputs) -> LossOutput, times the recipe's `weight` added to the policy's loss per token, so that it is reduced like it. One with
the extra `plain_sum=True` divides by denominators of its own: its values inside the mask are added up as they are."""
