"""What a method may need beyond the rewards: what providers give (`AdvantageInputs.provided`), quantities of the logits, and reward columns
by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.registry import Catalogue

OfLogits = Callable[[Tensor], Tensor]
"""Log-probs [M, V] of M tokens' distributions, over the V ids that may be drawn -> one number per token, [M]. It acts on each row alone."""
F = TypeVar("F", bound=OfLogits)

TOKEN_STATS: Catalogue[OfLogits] = Catalogue("token_stat")
"""Quantities per token beyond log-prob and entropy, by name."""
GRADIENT = "differentiable_"


def token_stat(name: str) -> Callable[[F], F]:
    """Decorator that registers a quantity of the logits: a method then needs `<name>_NT` (before the updates), `<name>_BT` (in a loss,
    without gradient) or `differentiable_<name>_BT`. It is computed where a method of the recipe needs it, in the output head.

    Raises:
        ValueError: the name is taken, begins like a need of its own, or the function has no docstring.
    """

    def register(function: F) -> F:
        if not function.__doc__:
            raise ValueError(f"token_stat '{name}' needs a docstring")
        if name.startswith(GRADIENT):
            raise ValueError(f"token_stat '{name}': a method writes '{GRADIENT}' in its needs; leave it out")
        TOKEN_STATS.add(name, function)
        return function

    return register


def token_stat_of(need: str) -> tuple[OfLogits, bool] | None:
    """Look up the quantity of the logits that a need names.

    Returns:
        (its function, whether with gradient); None for any other need.
    """
    name, _, axes = need.rpartition("_")
    # only what a loss reads can carry a gradient: [N, T] is computed before the updates
    gradient = axes == "BT" and name.startswith(GRADIENT)
    name = name.removeprefix(GRADIENT) if gradient else name
    return (TOKEN_STATS[name], gradient) if axes in ("NT", "BT") and name in TOKEN_STATS else None


def token_stat_needs() -> list[str]:
    """List the names under which methods need the registered quantities."""
    return [need for name in TOKEN_STATS for need in (f"{name}_NT", f"{name}_BT", f"{GRADIENT}{name}_BT")]


WHAT = {
    "progress": "the share of the stage that is done, in [0, 1]",
    "answer_N": "the cluster of each parsed answer",
    "logp_N": "the log-prob of each response under the policy that sampled it",
    "baseline_N": "the ledger's value of each prompt",
    "trajectory_N": "the trajectory that each rollout is a step of",
    "turn_N": "the number of each turn within its attempt",
    "state_N": "the state that each turn was taken in",
    "node_N": "what was seen and said up to each turn of an environment",
    "sample_N": "the row of data that each group asks about",
    "question_N": "which question of its group each row was asked",
    "belief_N": "the likelihood of the right answer under each prompt",
    "consistency_N": "the likelihood of each answer given its thought, under the slowly averaged reference",
    "ids_NT": "the token ids of each response",
    "logp_NT": "the log-prob of each token under the policy",
    "entropy_NT": "the entropy of the policy at each token",
    "logp_ref_NT": "the log-prob of each token under the stage's starting weights",
}


def need(x: AdvantageInputs, field: str, method: str) -> Tensor:
    """Look up what a provider gave, or an optional field of the inputs.

    Args:
        method: how the message calls the one that asks, e.g. "advantage 'spo'".

    Returns:
        The value, with the axes that the field's name ends in.

    Raises:
        ValueError: this run does not provide the field.
    """
    value: Tensor | None = getattr(x, field) if hasattr(x, field) else x.provided.get(field)
    if value is None:
        what = f" ({WHAT[field]})" if field in WHAT else ""
        raise ValueError(f"{method} needs {field}{what}, which this run does not provide; provide it or name another method")
    return value


def column_index(x: AdvantageInputs, name: str, slot: str = "reward_shaping") -> int:
    """Find the place of a reward column.

    Raises:
        ValueError: there is no such column.
    """
    if name not in x.columns:
        raise ValueError(f"{slot}: no reward column '{name}' (columns: {', '.join(x.columns)})")
    return x.columns.index(name)


def with_column(rewards_NK: Tensor, k: int, column_N: Tensor) -> Tensor:
    """Replace column k where it was judged.

    Returns:
        [N, K], a copy; what was NaN stays NaN.
    """
    out_NK = rewards_NK.clone()
    # shaping must not turn a rollout that the column did not judge into one that it did
    out_NK[:, k] = torch.where(rewards_NK[:, k].isnan(), rewards_NK[:, k], column_N.to(rewards_NK.dtype))
    return out_NK
