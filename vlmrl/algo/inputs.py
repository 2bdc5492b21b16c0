"""What the pure methods see: tensors only.

N rollouts, K reward columns, B rows of a micro-batch, T tokens. Values outside a mask may be anything, NaN included.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AdvantageInputs:
    """Rewards of a step, of all ranks, as flat tensors. Groups may have different sizes."""

    reward_N: Tensor
    """float64 weighted sum; NaN where nothing judged the rollout."""
    rewards_NK: Tensor
    """float64 columns; NaN where a column did not judge the rollout."""
    valid_N: Tensor
    """bool: at least one column judged the rollout. Others never enter a statistic and get advantage 0."""
    group_N: Tensor
    """int64 group ids."""
    task_N: Tensor
    """int64 task ids."""
    on_policy_N: Tensor
    """bool: sampled from the policy (not a ground-truth or guided row)."""
    length_N: Tensor
    """int64 response tokens."""
    columns: tuple[str, ...]
    """Names of the K columns."""


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """One micro-batch of response tokens."""

    logp_BT: Tensor
    """Under the policy, with gradient."""
    logp_old_BT: Tensor
    """Under the policy before the batch's updates, without gradient."""
    logp_ref_BT: Tensor | None
    """Under the reference; None where the recipe keeps none."""
    adv_BT: Tensor
    mask_BT: Tensor
    """bool: tokens that train."""
    group_B: Tensor
    """int64 group ids."""


@dataclass(frozen=True)
class LossOutput:
    """Loss per token, and metrics as detached (sum, count), so that they add over micro-batches and ranks."""

    loss_BT: Tensor
    metrics: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict[str, tuple[Tensor, Tensor]])


@dataclass(frozen=True)
class Reduction:
    """How token losses become one number: sum(loss * weight) / sum of `count` over all micro-batches and ranks."""

    weight_BT: Tensor
    count: Tensor
