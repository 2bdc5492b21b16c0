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
"""(LossInputs) -> LossOutput"""
reducer: Registry[Callable[..., Reduction]] = Registry("reducer")
"""(mask [B, T]) -> Reduction"""
select: Registry[Callable[..., tuple[Tensor, str]]] = Registry("select")
"""(AdvantageInputs) -> (keep [N] bool, reason)"""
kl_estimator: Registry[Callable[..., Tensor]] = Registry("kl_estimator")
"""(logp [B, T], logp_ref [B, T]) -> [B, T]"""
shape: Registry[Callable[..., Tensor]] = Registry("shape")
"""(rewards [N, K], valid [N], AdvantageInputs) -> rewards [N, K]"""
