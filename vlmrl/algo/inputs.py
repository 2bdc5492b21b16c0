"""What the pure methods see: tensors only.

N rollouts, K reward columns, B rows of a micro-batch, T tokens. Values outside a mask may be anything, NaN included. The letters behind
a field's last underscore are its axes, and code goes by them: a field `x_N` or `x_NT` has one entry per rollout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor


def has_axis(name: str, axis: str) -> bool:
    """Check whether a tensor of this name has `axis` first: `has_axis("ids_NT", "N")`."""
    return "_" in name and name.rpartition("_")[2].startswith(axis)


class Inputs:
    """What both inputs of methods have: a clear error where code reads what a provider gives as if it were a field."""

    if not TYPE_CHECKING:  # a type checker would take it for a promise of every field

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{type(self).__name__} has no field '{name}'; what a provider gives is declared by the method that reads it, "
                f'needs=("{name}",), and found in provided["{name}"]'
            )


@dataclass(frozen=True, kw_only=True)
class AdvantageInputs(Inputs):
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
    tasks: tuple[str, ...] = ()
    """Names of the tasks, by task id."""
    weights_K: Tensor | None = None
    """float64 weights of the columns in `reward_N`; None: 1 each."""
    memory: Mapping[str, Tensor] | None = None
    """What the method that is called remembers, by name, as it was before this step; {} at the first step, None where it keeps nothing.

    A method with a memory is registered with `remembers=update`. `update(state, x, *, ...)` is pure and returns the state after a step:
    a new dict of numbers, lists of numbers or tensors by name (a checkpoint holds it). Each step the trainer makes x with `memory` = the
    state as float64 tensors, calls the method with it, and then stores `update(state, x, ...)` with those of the recipe's arguments that
    `update` names: once, also where the optimizer step is then skipped, as the rewards were seen. `update` is called with x over all
    ranks, so every rank arrives at the same state. A method that lets a step's rewards count in its own statistics calls `update`
    itself, on the state before the step."""
    provided: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What else the methods of the recipe need, by name, each value from its provider: `need(x, "entropy_NT", "reweight 'mine'")` of
    `algo.needs`. Names end in axes, like those of fields."""

    def of_rows(self, index_n: Tensor, *, tokens: int | None = None) -> AdvantageInputs:
        """Cut the inputs to some rollouts: every field with an axis N, and with `tokens` the axis T to so many."""

        def cut(name: str, value: Tensor) -> Tensor:
            part = value[index_n]
            return part[:, :tokens] if tokens is not None and name.endswith("T") else part

        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        # which fields are cut is read from their names: a field `weights_K` or `memory` has no axis N and stays
        own: dict[str, Any] = {name: cut(name, value) for name, value in values.items() if has_axis(name, "N") and value is not None}
        provided = {name: cut(name, value) if has_axis(name, "N") else value for name, value in self.provided.items()}
        return dataclasses.replace(self, **own, provided=provided)


@dataclass(frozen=True, kw_only=True)
class LossInputs(Inputs):
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
    offpolicy_B: Tensor | None = None
    """bool: rows that the policy did not sample (ground truth, a teacher's trace)."""
    task_B: Tensor | None = None
    """int64 task ids."""
    tasks: tuple[str, ...] = ()
    """Names of the tasks, by task id."""
    entropy_BT: Tensor | None = None
    """Entropies, in nats, of the distributions that the tokens are drawn from, under the policy. With gradient where a method of the
    recipe needs `entropy_BT`, else without."""
    provided: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What else the methods of the recipe need, by name, each value from its provider: `x.need("segment_BT", "mine")`."""

    def need(self, field: str, loss: str) -> Tensor:
        """Look up an optional field or what a provider gave, for a loss that declares it in its `needs` extra.

        Returns:
            The value, with the axes that the field's name ends in.

        Raises:
            ValueError: it is None.
        """
        value: Tensor | None = getattr(self, field) if hasattr(self, field) else self.provided.get(field)
        if value is None:
            raise ValueError(f"loss '{loss}' needs LossInputs.{field}, which is None; the training step has to fill it")
        return value


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
