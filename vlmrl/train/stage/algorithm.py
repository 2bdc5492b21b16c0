"""The recipe's methods with their arguments and memories, and the order in which they act: from rewards to advantages."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vlmrl import protocols
from vlmrl.algo import registries
from vlmrl.algo.constraint.registry import PartialMean
from vlmrl.algo.constraint.registry import constraint as constraints
from vlmrl.algo.inputs import AdvantageInputs
from vlmrl.errors import ConfigError
from vlmrl.policy.pack import Row, response_mask
from vlmrl.registry import Registry
from vlmrl.train.memory import MethodMemory
from vlmrl.train.stage.table import RewardTable, by_trajectory, total
from vlmrl.types import Rollout, ScoredGroup, TurnRollout

if TYPE_CHECKING:
    from vlmrl.config.schema import GrpoSection, Method


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A registered function with the recipe's arguments, what its registration says of it, and its memory."""

    slot: str
    name: str
    call: Callable[..., Any]
    extra: Mapping[str, Any]
    arguments: Mapping[str, Any]
    defaults: Mapping[str, Any]
    memory: MethodMemory = field(default_factory=MethodMemory)

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(self.extra.get("needs", ()))

    @property
    def remembers(self) -> bool:
        """Whether something of it lasts from step to step."""
        return "remembers" in self.extra or "acts_on" in self.extra

    def argument(self, name: str) -> Any:
        """An argument of the recipe, or the method's default."""
        return self.arguments[name] if name in self.arguments else self.defaults[name]

    def seeing(self, x: AdvantageInputs) -> AdvantageInputs:
        """The inputs as this method sees them: with its memory, if it has one."""
        if "remembers" not in self.extra:
            return x
        return dataclasses.replace(x, memory={name: _tensor(value) for name, value in self.memory.value.items()})

    def learn(self, x: AdvantageInputs) -> None:
        """Move the memory on by the method's own pure update, with those of the recipe's arguments that the update names."""
        update = self.extra.get("remembers")
        if update is not None:
            known = inspect.signature(update).parameters
            self.memory.value = update(self.memory.value, x, **{k: v for k, v in self.arguments.items() if k in known})

    def dual(self) -> dict[str, float]:
        """Of a constraint: the stored dual, or the starting one."""
        if not self.memory.value:
            self.memory.value = self.call({}, {})
        return self.memory.value

    def advance(self, measured: Mapping[str, PartialMean]) -> dict[str, float]:
        """Of a constraint: the dual after a step with these measurements."""
        self.memory.value = self.call(self.dual(), measured)
        return self.memory.value


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


def bind(registry: Registry[Any], method: Method) -> Bound:
    """A recipe's method of a slot."""
    entry = registry.get(method.name)
    return Bound(
        slot=registry.slot,
        name=method.name,
        call=registry.bind(method.name, method.arguments),
        extra=entry.extra,
        arguments=method.arguments,
        defaults={name: p.default for name, p in entry.parameters.items() if not p.required},
    )


REMEMBERING = ("reward_shaping", "advantage", "reweight", "credit")
"""Slots whose methods may be registered with `remembers`."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Everything between rewards and gradient that a recipe names, and the strategy that completes its groups."""

    reward_shaping: Sequence[Bound]
    filters: Sequence[Bound]
    advantage: Bound
    reweight: Sequence[Bound]
    credit: Bound
    loss: Bound
    group_loss: Bound | None
    auxiliary: Sequence[tuple[Bound, float]]
    """(regulariser, its weight)."""
    reducer: Bound
    kl: Bound
    importance_correction: Bound
    constraints: Sequence[Bound]
    strategy: Bound

    @staticmethod
    def of(cfg: GrpoSection) -> Algorithm:
        """The methods that a section names.

        Raises:
            ConfigError: one is registered with a memory in a slot whose methods are not called once per step.
        """
        out = Algorithm(
            reward_shaping=[bind(registries.reward_shaping, m) for m in cfg.reward_shaping],
            filters=[bind(registries.rollout_filter, m) for m in cfg.filters],
            advantage=bind(registries.advantage, cfg.advantage),
            reweight=[bind(registries.reweight, m) for m in cfg.reweight],
            credit=bind(registries.credit, cfg.credit),
            loss=bind(registries.policy_loss, cfg.loss),
            group_loss=None if cfg.group_loss is None else bind(registries.group_loss, cfg.group_loss),
            auxiliary=[(bind(registries.auxiliary_loss, m), m.weight) for m in cfg.auxiliary_losses],
            reducer=bind(registries.reducer, cfg.reduce),
            kl=bind(registries.kl_estimator, cfg.kl),
            importance_correction=bind(registries.importance_correction, cfg.importance_correction),
            constraints=[bind(constraints, m) for m in cfg.constraints],
            strategy=bind(protocols.strategy, cfg.rollout.strategy),
        )
        wrong = [
            f"{m.slot} '{m.name}' cannot remember: only {', '.join(REMEMBERING)} are called once per step"
            for m in out.methods()
            if "remembers" in m.extra and m.slot not in REMEMBERING
        ]
        if wrong:
            raise ConfigError(wrong)
        return out

    def methods(self) -> Iterator[Bound]:
        """All of them, in the order in which they act. (A group loss is given what it needs by the two passes themselves.)"""
        yield from (self.strategy, *self.filters, *self.reward_shaping, self.advantage, *self.reweight, self.credit)
        if self.group_loss is None:
            yield from (self.loss, self.kl)
        yield from (method for method, _ in self.auxiliary)
        yield from self.constraints

    def acting_on(self, what: str) -> list[Bound]:
        """The constraints whose dual goes to `advantage`, `loss` or `beta`."""
        return [c for c in self.constraints if c.extra["acts_on"] == what]

    def needs(self, name: str) -> bool:
        """Whether one of the methods needs a field."""
        return any(name in method.needs for method in self.methods())

    def beta(self, recipe: float) -> float:
        """Weight of the divergence in this step: the recipe's, or the one that a constraint steers."""
        return next((c.dual()["kl"] for c in self.acting_on("beta")), recipe)

    def duals(self) -> dict[str, float]:
        """For the log: `dual/<constraint>/<name>`."""
        return {f"dual/{c.name}/{name}": float(value) for c in self.constraints for name, value in c.memory.value.items()}


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rows train. [N] over all ranks."""

    keep_N: torch.Tensor
    counted_N: torch.Tensor
    """Rows that the advantage may see: filters registered with `before_advantage` take rows out of its statistics too."""
    dropped: dict[str, float]
    """`filter/<reason>` -> share of rows."""

    @staticmethod
    def of(filters: Sequence[Bound], x: AdvantageInputs) -> Selection:
        keep_N = torch.ones(len(x.reward_N), dtype=torch.bool)
        counted_N = x.valid_N.clone()
        dropped: dict[str, float] = {}
        for rule in filters:
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


@dataclass(kw_only=True)
class Batch:
    """The rollouts of a step on this rank, row by row, with the rewards of all ranks."""

    groups: list[tuple[int, ScoredGroup]]
    """(place in the plan, group)."""
    rows: list[Row]
    rollouts: list[Rollout]
    mask_NT: torch.Tensor
    """bool: the responses' tokens."""
    table: RewardTable
    chosen: Selection
    measured: dict[str, float] = field(default_factory=dict[str, float])
    """What is logged of the batch beside its rewards."""

    @staticmethod
    def of(groups: list[tuple[int, ScoredGroup]], table: RewardTable) -> Batch:
        """All groups, before any filter."""
        triples = [(place, scored, rollout) for place, scored in groups for rollout in scored.group.rollouts]
        rows = [
            Row(
                index=n,
                group=place,
                prompt=scored.group.trained_under(rollout),
                response=rollout.ids,
                turn=rollout.turn if isinstance(rollout, TurnRollout) else None,
            )
            for n, (place, scored, rollout) in enumerate(triples)
        ]
        return Batch(
            groups=groups,
            rows=rows,
            rollouts=[rollout for _, _, rollout in triples],
            mask_NT=response_mask(rows),
            table=table,
            chosen=Selection.of([], table.inputs),
        )

    def kept(self) -> list[int]:
        """This rank's rows that train, as places in `rows`: those that the filters keep, less those that `trains_N` leaves out."""
        keep_N, trains_N = self.chosen.keep_N, self.table.inputs.provided.get("trains_N")
        return [n for n, place in enumerate(self.table.mine) if keep_N[place] and (trains_N is None or trains_N[place])]


def credit_tokens(algorithm: Algorithm, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(advantage per token of this rank's rows [n, T], advantage per rollout of all ranks [N]).

    In order: shaping (which changes what the advantage sees, not what is logged), the advantage, the constraints on top of it with
    the raw rewards, reweighting per rollout, credit, reweighting per token. Memories of methods move on here, once per step.
    """
    table, chosen = batch.table, batch.chosen
    raw = dataclasses.replace(table.inputs, valid_N=chosen.counted_N)
    x = shaped(algorithm, raw, table.weights_K)
    asked = algorithm.advantage.needs
    seen = by_trajectory(x, table.trajectories, asked) if "trajectory_N" in asked else x
    adv_N: torch.Tensor = algorithm.advantage.call(algorithm.advantage.seeing(seen))
    algorithm.advantage.learn(seen)
    for guard in algorithm.acting_on("advantage"):
        dual = guard.dual()
        adv_N = guard.extra["apply"](raw, adv_N, dual)
        guard.advance(guard.extra["measure"](table.inputs, list(dual)))
    for method in algorithm.reweight:
        if not per_token(method):
            adv_N = method.call(method.seeing(x), adv_N)
            method.learn(x)
    mine, mask_NT = torch.tensor(table.mine, dtype=torch.int64), batch.mask_NT
    local = x.of_rows(mine, tokens=mask_NT.shape[1])
    adv_NT: torch.Tensor = algorithm.credit.call(algorithm.credit.seeing(local), adv_N[mine], mask_NT)
    algorithm.credit.learn(x)
    for method in algorithm.reweight:
        if per_token(method):
            weighted_NT = method.call(method.seeing(local), adv_NT)
            adv_NT = torch.where(mask_NT, weighted_NT.to(adv_NT.dtype), torch.zeros_like(adv_NT))
            method.learn(x)
    return adv_NT, adv_N


def advantage_problem(algorithm: Algorithm, batch: Batch, adv_N: torch.Tensor) -> str | None:
    """What is wrong where a row that trains has an advantage that is not finite: the methods, and the rewards of the first. The same on
    every rank."""
    x, keep_N = batch.table.inputs, batch.chosen.keep_N
    bad_N = keep_N & x.valid_N & ~adv_N.isfinite()
    if not bool(bad_N.any()):
        return None
    n = int(bad_N.nonzero()[0])
    rewards = ", ".join(f"{name} {value:.6g}" for name, value in zip(x.columns, x.rewards_NK[n].tolist(), strict=True))
    methods = [*algorithm.reward_shaping, algorithm.advantage, *algorithm.acting_on("advantage"), *algorithm.reweight]
    return (
        f"{int(bad_N.sum())} of {len(bad_N)} advantages are not finite, the first is {float(adv_N[n])} with the rewards {rewards}; they "
        f"went through {', '.join(f'{m.slot} {m.name}' for m in methods)}: look at their arguments and at the size of the rewards"
    )


def per_token(method: Bound) -> bool:
    """Whether a reweighting acts on token advantages [n, T], behind credit; else on those of rollouts [N], before it."""
    return method.extra.get("per", "rollout") == "token"


def shaped(algorithm: Algorithm, x: AdvantageInputs, weights_K: torch.Tensor) -> AdvantageInputs:
    """The inputs with every shaping applied to the reward columns, in order."""
    rewards_NK = x.rewards_NK
    for shaping in algorithm.reward_shaping:
        seen = dataclasses.replace(x, rewards_NK=rewards_NK)
        rewards_NK = shaping.call(rewards_NK, x.valid_N, shaping.seeing(seen))
        shaping.learn(seen)
    return dataclasses.replace(x, rewards_NK=rewards_NK, reward_N=total(rewards_NK, weights_K))
