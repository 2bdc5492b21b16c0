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
from vlmrl.registry import Registry
from vlmrl.train.batch import StepBatch, total
from vlmrl.train.memory import MethodMemory

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
        """Whether it has a memory or a dual that lasts from step to step."""
        return "remembers" in self.extra or "acts_on" in self.extra

    def argument(self, name: str) -> Any:
        """Read an argument of the recipe, or the method's default."""
        return self.arguments[name] if name in self.arguments else self.defaults[name]

    def seeing(self, x: AdvantageInputs) -> AdvantageInputs:
        """Give the inputs as this method sees them: with its memory, if it has one, as float64 tensors."""
        if "remembers" not in self.extra:
            return x
        return dataclasses.replace(x, memory={name: _tensor(value) for name, value in self.memory.value.items()})

    def learn(self, x: AdvantageInputs) -> None:
        """Move the memory on by the method's own pure update, with those of the recipe's arguments that the update names."""
        update = self.extra.get("remembers")
        if update is not None:
            # the method may take arguments that its memory has no use for
            known = inspect.signature(update).parameters
            self.memory.value = update(self.memory.value, x, **{k: v for k, v in self.arguments.items() if k in known})

    def dual(self) -> dict[str, float]:
        """Give a constraint's stored dual, or the starting one."""
        if not self.memory.value:
            self.memory.value = self.call({}, {})
        return self.memory.value

    def advance(self, measured: Mapping[str, PartialMean]) -> dict[str, float]:
        """Move a constraint's dual on by a step's measurements, and give it."""
        self.memory.value = self.call(self.dual(), measured)
        return self.memory.value


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


def bind(registry: Registry[Any], method: Method) -> Bound:
    """Bind a recipe's method of a slot to its arguments."""
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
        """Bind the methods that a section names.

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
        # a loss is called once per micro-batch and a filter once per attempt: a memory would depend on how the step was cut
        wrong = [
            f"{m.slot} '{m.name}' cannot remember: only {', '.join(REMEMBERING)} are called once per step"
            for m in out.methods()
            if "remembers" in m.extra and m.slot not in REMEMBERING
        ]
        if wrong:
            raise ConfigError(wrong)
        return out

    def methods(self) -> Iterator[Bound]:
        """Yield all of them, in the order in which they act. (A group loss is given what it needs by the two passes themselves.)"""
        yield from (self.strategy, *self.filters, *self.reward_shaping, self.advantage, *self.reweight, self.credit)
        if self.group_loss is None:
            yield from (self.loss, self.kl)
        yield from (method for method, _ in self.auxiliary)
        yield from self.constraints

    def acting_on(self, what: str) -> list[Bound]:
        """Find the constraints whose dual goes to `advantage`, `loss` or `beta`."""
        return [c for c in self.constraints if c.extra["acts_on"] == what]

    def needs(self, name: str) -> bool:
        """Whether one of the methods needs a field."""
        return any(name in method.needs for method in self.methods())

    def beta(self, recipe: float) -> float:
        """Give the weight of the divergence in this step: the recipe's, or the one that a constraint steers."""
        return next((c.dual()["kl"] for c in self.acting_on("beta")), recipe)

    def duals(self) -> dict[str, float]:
        """Name the duals for the log: `dual/<constraint>/<name>`."""
        return {f"dual/{c.name}/{name}": float(value) for c in self.constraints for name, value in c.memory.value.items()}


def select(filters: Sequence[Bound], batch: StepBatch) -> None:
    """Apply the filters in order. Logged of each is the share of all rows that it is the first to leave out, as `filter/<reason>`."""
    for rule in filters:
        found: tuple[torch.Tensor, str] = rule.call(batch.x)
        keep_N, reason = found
        # of rows that no earlier filter left out, so that the shares of all filters add up
        batch.measured[f"filter/{reason}"] = float((batch.keep_N & ~keep_N).sum()) / max(1, len(keep_N))
        batch.keep_N = batch.keep_N & keep_N
        if rule.extra.get("before_advantage", False):
            batch.counted_N = batch.counted_N & keep_N


def credit_tokens(algorithm: Algorithm, batch: StepBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn rewards into advantages per token.

    In order: shaping (which changes what the advantage sees, not what is logged), the advantage, the constraints on top of it with
    the raw rewards, reweighting per rollout, credit, reweighting per token. Memories of methods move on here, once per step.

    Returns:
        (advantage per token of this rank's rows [n, T], advantage per rollout of all ranks [N]); 0 outside the responses.
    """
    raw = dataclasses.replace(batch.x, valid_N=batch.counted_N)  # the rewards before shaping, for constraints
    x = shaped(algorithm, raw)
    asked = algorithm.advantage.needs
    seen = by_trajectory(x, batch.trajectories, asked) if "trajectory_N" in asked else x
    adv_N: torch.Tensor = algorithm.advantage.call(algorithm.advantage.seeing(seen))
    # learnt after the call, from the rows of all ranks: a method sees past steps alone, and the same on every rank
    algorithm.advantage.learn(seen)
    # on top of the method's own advantage: the dual as it is now, then moved on by what this step measures
    for guard in algorithm.acting_on("advantage"):
        dual = guard.dual()
        adv_N = guard.extra["apply"](raw, adv_N, dual)
        guard.advance(guard.extra["measure"](batch.x, list(dual)))
    for method in algorithm.reweight:
        if not per_token(method):
            adv_N = method.call(method.seeing(x), adv_N)
            method.learn(x)
    mine, mask_NT = batch.mine, batch.mask_NT
    # [N] of all ranks -> [n, T] of this one: from here on tokens are needed, and each rank has only its own
    local = x.of_rows(mine, tokens=mask_NT.shape[1])
    adv_NT: torch.Tensor = algorithm.credit.call(algorithm.credit.seeing(local), adv_N[mine], mask_NT)
    algorithm.credit.learn(x)
    for method in algorithm.reweight:
        if per_token(method):
            weighted_NT = method.call(method.seeing(local), adv_NT)
            adv_NT = torch.where(mask_NT, weighted_NT.to(adv_NT.dtype), torch.zeros_like(adv_NT))
            method.learn(x)
    return adv_NT, adv_N


def by_trajectory(x: AdvantageInputs, names: Sequence[str | None], needs: Sequence[str] = ()) -> AdvantageInputs:
    """Group the same rows by the trajectory that they are steps of, for methods that ask for `trajectory_N`.

    Args:
        names: trajectory of each row.
        needs: what the method asks for.

    Raises:
        ConfigError: a row is of no trajectory, or does not say which step it is where the method asks for that.
    """
    if "trajectory_N" not in x.provided or any(name is None for name in names):
        raise ConfigError("a method that needs trajectories is used on rows without `trajectory.id` in their meta; add it or use another")
    if "turn_N" in needs and "turn_N" not in x.provided:
        raise ConfigError(
            "a method that needs turns is used on rows without `trajectory.step` (the number of the step, from 0) in their meta; add it or "
            "use another"
        )
    known = {name: number for number, name in enumerate(sorted({str(name) for name in names}))}
    return dataclasses.replace(x, group_N=torch.tensor([known[str(name)] for name in names]))


def advantage_problem(algorithm: Algorithm, batch: StepBatch, adv_N: torch.Tensor) -> str | None:
    """Say what is wrong where a row that trains has an advantage that is not finite: the methods, and the rewards of the first. The same
    on every rank.
    """
    x = batch.x
    # rows that nothing judged, or that a filter left out, may hold anything: they train nothing
    bad_N = batch.keep_N & x.valid_N & ~adv_N.isfinite()
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


def shaped(algorithm: Algorithm, x: AdvantageInputs) -> AdvantageInputs:
    """Apply every shaping to the reward columns, in order, and sum them anew.

    Returns:
        The inputs with `rewards_NK` and `reward_N` shaped; the others are as they were.
    """
    rewards_NK = x.rewards_NK
    for shaping in algorithm.reward_shaping:
        # each sees the columns as those before it left them
        seen = dataclasses.replace(x, rewards_NK=rewards_NK)
        rewards_NK = shaping.call(rewards_NK, x.valid_N, shaping.seeing(seen))
        shaping.learn(seen)
    return dataclasses.replace(x, rewards_NK=rewards_NK, reward_N=total(rewards_NK, x.weights_K))
