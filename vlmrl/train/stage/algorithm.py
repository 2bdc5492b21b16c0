"""The recipe's names as functions with their arguments, and the order in which they act on a step's rewards."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vlmrl.algo import registries
from vlmrl.algo.constraint.lagrangian import combine, measure
from vlmrl.algo.constraint.registry import Measured
from vlmrl.algo.constraint.registry import constraint as constraints
from vlmrl.algo.group_loss.two_pass import choice
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.config.schema import GrpoSection, Method
from vlmrl.registry import Registry
from vlmrl.train.stage.table import RewardTable, by_trajectory, total
from vlmrl.train.state import RunState


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A registered function with the recipe's arguments, and what its registration says of it."""

    name: str
    call: Callable[..., Any]
    extra: Mapping[str, Any]
    arguments: Mapping[str, Any]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(self.extra.get("needs", ()))


def bind(registry: Registry[Any], method: Method) -> Bound:
    """A recipe's method of a slot."""
    return Bound(
        name=method.name,
        call=registry.bind(method.name, method.arguments),
        extra=registry.get(method.name).extra,
        arguments=method.arguments,
    )


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Everything between rewards and gradient that a recipe names."""

    reward_shaping: Sequence[Bound]
    filters: Sequence[Bound]
    advantage: Bound
    credit: Bound
    loss: Bound
    group_loss: Bound | None
    reducer: Bound
    kl: Bound
    importance_correction: Bound
    constraints: Sequence[Bound]

    @staticmethod
    def of(cfg: GrpoSection) -> Algorithm:
        return Algorithm(
            reward_shaping=[bind(registries.reward_shaping, m) for m in cfg.reward_shaping],
            filters=[bind(registries.rollout_filter, m) for m in cfg.filters],
            advantage=bind(registries.advantage, cfg.advantage),
            credit=bind(registries.credit, cfg.credit),
            loss=bind(registries.policy_loss, cfg.loss),
            group_loss=None if cfg.group_loss is None else bind(registries.group_loss, cfg.group_loss),
            reducer=bind(registries.reducer, cfg.reduce),
            kl=bind(registries.kl_estimator, cfg.kl),
            importance_correction=bind(registries.importance_correction, cfg.importance_correction),
            constraints=[bind(constraints, m) for m in cfg.constraints],
        )

    def acting_on(self, what: str) -> Bound | None:
        """The constraint whose dual goes to `advantage`, `loss` or `beta`, if there is one."""
        return next((c for c in self.constraints if c.extra["acts_on"] == what), None)

    def score_of_group_loss(self) -> tuple[str, str | None]:
        """(row score, divergence) that the group loss compares."""
        assert self.group_loss is not None
        return choice(self.group_loss.call, "score") or "logL", choice(self.group_loss.call, "divergence")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rows train. [N] over all ranks."""

    keep_N: torch.Tensor
    counted_N: torch.Tensor
    """Rows that the advantage may see: filters registered with `before_advantage` take rows out of its statistics too."""
    dropped: dict[str, float]
    """`filter/<reason>` -> share of rows."""

    @staticmethod
    def of(algorithm: Algorithm, x: AdvantageInputs) -> Selection:
        keep_N = torch.ones(len(x.reward_N), dtype=torch.bool)
        counted_N = x.valid_N.clone()
        dropped: dict[str, float] = {}
        for rule in algorithm.filters:
            found: tuple[torch.Tensor, str] = rule.call(x)
            keep, reason = found
            dropped[f"filter/{reason}"] = float((keep_N & ~keep).sum()) / max(1, len(keep_N))
            keep_N &= keep
            if rule.extra.get("before_advantage", False):
                counted_N &= keep
        return Selection(keep_N=keep_N, counted_N=counted_N, dropped=dropped)

    def first_groups(self, x: AdvantageInputs, count: int) -> Selection:
        """Only the first `count` kept groups, in plan order."""
        places = sorted(set(x.group_N[self.keep_N].tolist()))[:count]
        within_N = torch.isin(x.group_N, torch.tensor(places))
        return dataclasses.replace(self, keep_N=self.keep_N & within_N)

    def kept_groups(self, x: AdvantageInputs) -> int:
        return len(set(x.group_N[self.keep_N].tolist()))


def dual_of(state: RunState, constraint: Bound) -> dict[str, float]:
    """The stored dual, or the starting one."""
    if constraint.name not in state.duals:
        state.duals[constraint.name] = constraint.call({}, {})
    return state.duals[constraint.name]


def advance_dual(state: RunState, constraint: Bound, measured: Mapping[str, Measured]) -> None:
    state.duals[constraint.name] = constraint.call(dual_of(state, constraint), measured)


def credit_tokens(
    algorithm: Algorithm, table: RewardTable, chosen: Selection, state: RunState, mask_NT: torch.Tensor, ids_NT: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(advantage per token of this rank's rows [n, T], advantage per rollout of all ranks [N]).

    In order: shaping (which changes what the advantage sees, not what is logged), the advantage, the constraints on top of it with
    the raw rewards, credit. Memories of methods move on here, once per step.
    """
    raw = dataclasses.replace(table.inputs, valid_N=chosen.counted_N)
    x = shaped(algorithm, raw, table.weights_K)
    if "trackers" in algorithm.advantage.needs:
        stored = {name: torch.tensor(values, dtype=torch.float64) for name, values in state.trackers.items()}
        x = dataclasses.replace(x, trackers=stored)
    seen = by_trajectory(x, table.trajectories) if "trajectory_N" in algorithm.advantage.needs else x
    adv_N: torch.Tensor = algorithm.advantage.call(seen)
    if "tracker" in algorithm.advantage.extra:
        state.trackers = _track(algorithm.advantage, state.trackers, seen)
    guard = algorithm.acting_on("advantage")
    if guard is not None:
        dual = dual_of(state, guard)
        adv_N = combine(raw, adv_N, dual)
        advance_dual(state, guard, measure(table.inputs, list(dual)))
    mine = torch.tensor(table.mine, dtype=torch.int64)
    local = dataclasses.replace(x.of_rows(mine), ids_NT=ids_NT)
    return algorithm.credit.call(local, adv_N[mine], mask_NT), adv_N


def shaped(algorithm: Algorithm, x: AdvantageInputs, weights_K: torch.Tensor) -> AdvantageInputs:
    """The inputs with every shaping applied to the reward columns, in order."""
    rewards_NK = x.rewards_NK
    for shaping in algorithm.reward_shaping:
        rewards_NK = shaping.call(rewards_NK, x.valid_N, dataclasses.replace(x, rewards_NK=rewards_NK))
    return dataclasses.replace(x, rewards_NK=rewards_NK, reward_N=total(rewards_NK, weights_K))


def _track(method: Bound, before: Mapping[str, list[float]], x: AdvantageInputs) -> dict[str, list[float]]:
    """The method's memory after a step, by its own pure update with those of the recipe's arguments that the update names."""
    update = method.extra["tracker"]
    known = inspect.signature(update).parameters
    return update(before, x, **{name: value for name, value in method.arguments.items() if name in known})
