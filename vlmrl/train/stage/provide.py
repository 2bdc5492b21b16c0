"""Providers: who fetches what a method needs beyond the rewards.

A method declares `needs=("entropy_NT",)`. The provider of that field is a function that is called once per step, and only if some method
of the recipe needs the field:

    @provides("gaze_N")
    def gaze(stage: Stage, batch: StepBatch, method: Bound) -> dict[str, Tensor]: ...

The axes in a field's name say where it goes. `_N` and `_NT` are values of this rank's rollouts (in the order of `batch.rows`) for methods
that see `AdvantageInputs`; those of all ranks are put together. `_B` and `_BT` are values of a minibatch's rows for methods that see
`LossInputs`; `batch` is then the `Minibatch`. Methods find both in `provided`.
Quantities of the logits (`algo.needs.token_stat`) need no provider of their own: one forward pass of all rows gives those before the
updates (`providers.tokens`), the pass of a loss its own.
A value that the step's rows do not have is left out, on every rank alike; a method that cannot go without then says so (`need`).
A provider may keep something from step to step (`keeps`), and may ask for the stage's second model (`reference`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vlmrl.algo.inputs import AdvantageInputs, LossInputs, has_axis
from vlmrl.algo.needs import token_stat_needs, token_stat_of
from vlmrl.errors import ConfigError
from vlmrl.policy.head import TokenStat
from vlmrl.protocols import Stateful
from vlmrl.registry import nearest
from vlmrl.train import dist
from vlmrl.train.batch import StepBatch
from vlmrl.train.memory import Memories
from vlmrl.train.stage.algorithm import Bound

Fetch = Callable[..., Mapping[str, torch.Tensor]]
"""(stage, batch, method that needs it) -> values by field."""


class ProviderState(Stateful, Protocol):
    """State of a provider that lasts from step to step: made once per stage as `keeps(stage, method)`, saved with every checkpoint."""

    def after_update(self) -> None:
        """Take note of an update that was applied; called after each."""
        ...


@dataclass(frozen=True, kw_only=True)
class Provider:
    """One registered provider."""

    fields: tuple[str, ...]
    fetch: Fetch
    reference: bool
    """Whether the stage must keep its starting weights as a second model."""
    keeps: Callable[..., ProviderState] | None
    arguments: tuple[str, ...]
    """Arguments of the method that it goes by: methods that share the field must agree on them."""


PROVIDERS: dict[str, Provider] = {}
"""Field -> its provider."""


def provides(
    *names: str, reference: bool = False, keeps: Callable[..., ProviderState] | None = None, arguments: tuple[str, ...] = ()
) -> Callable[[Fetch], Fetch]:
    """Register the decorated function as the provider of some fields.

    Args:
        names: of the fields; each ends with the axes of its tensor.
        reference: whether it asks for the stage's starting weights.
        keeps: makes what it keeps from step to step, as `keeps(stage, method)`.
        arguments: those of the method that it goes by.
    """

    def register(fetch: Fetch) -> Fetch:
        if not fetch.__doc__:
            raise ValueError(f"the provider of {', '.join(names)} needs a docstring")
        for name in names:
            if not (has_axis(name, "N") or has_axis(name, "B")):
                raise ValueError(f"provider of '{name}': a name ends with the axes of its tensor, _N, _NT, _B or _BT")
            if name in PROVIDERS:
                raise ValueError(f"'{name}' has a provider already ({PROVIDERS[name].fetch.__module__})")
            PROVIDERS[name] = Provider(fields=names, fetch=fetch, reference=reference, keeps=keeps, arguments=arguments)
        return fetch

    return register


SCALARS = ("progress",)
"""In `provided` without a provider (`StepBatch.of`): single numbers, the same on every rank."""
ALWAYS = {one.name for inputs in (AdvantageInputs, LossInputs) for one in dataclasses.fields(inputs)} | {*SCALARS}
"""What the trainer itself fills, where it can."""
PASS = "logp_NT"
"""The provider of this field makes the pass that gives quantities of the logits before the updates."""


def provided_fields() -> set[str]:
    """List every name that may stand in `provided`."""
    return {*PROVIDERS, *SCALARS, *token_stat_needs()}


@dataclass(frozen=True)
class Providers:
    """The providers that a stage uses, each with the method that needs it. The stage itself (`stage.base.Stage`) is handed on to them."""

    used: Mapping[str, tuple[Provider, Bound]] = dataclasses.field(default_factory=dict[str, "tuple[Provider, Bound]"])
    """By field that is needed."""
    keepers: dict[str, ProviderState] = dataclasses.field(default_factory=dict[str, ProviderState])
    stats: Mapping[str, TokenStat] = dataclasses.field(default_factory=dict[str, TokenStat])
    """The quantities of the logits that are needed, by the names of these needs."""

    @staticmethod
    def of(methods: Iterable[Bound]) -> Providers:
        """Choose the providers that the methods of a recipe need.

        Raises:
            ConfigError: nothing provides a need, or two methods want it made from different arguments.
        """
        used: dict[str, tuple[Provider, Bound]] = {}
        stats: dict[str, TokenStat] = {}
        problems: list[str] = []
        for method in methods:
            for name in method.needs:
                provider, quantity = PROVIDERS.get(name), token_stat_of(name)
                # no provider of its own: the pass before the updates gives it, or for a loss (`_BT`) the loss's own
                if quantity is not None:
                    if provider is not None or name in ALWAYS:
                        problems.append(f"'{name}' of {method.slot} '{method.name}' is a token_stat and a field too; rename the token_stat")
                    stats[name] = TokenStat(*quantity)
                    provider = PROVIDERS[PASS] if name.endswith("_NT") else None
                if provider is None:
                    if quantity is None and name not in ALWAYS:
                        known = sorted({*provided_fields(), *ALWAYS})
                        problems.append(f"{method.slot} '{method.name}' needs '{name}', which nothing provides{nearest(name, known)}")
                    continue
                # a field is fetched once for all methods, so they must want it made alike
                first = used.setdefault(name, (provider, method))[1]
                differ = [a for a in provider.arguments if method.argument(a) != first.argument(a)]
                if differ:
                    problems.append(
                        f"{first.slot} '{first.name}' and {method.slot} '{method.name}' both need '{name}', with different "
                        f"{', '.join(differ)}; give them the same"
                    )
        if problems:
            raise ConfigError(problems)
        return Providers(used, stats=stats)

    def stats_of(self, axes: str) -> dict[str, TokenStat]:
        """Choose the quantities of the logits whose needs end in these axes."""
        return {name: stat for name, stat in self.stats.items() if name.endswith(f"_{axes}")}

    @property
    def reference(self) -> bool:
        """Whether one of them asks for the stage's starting weights."""
        return any(provider.reference for provider, _ in self.used.values())

    @property
    def moves(self) -> bool:
        """Whether a provider changes the weights of that second model."""
        return any(provider.reference and provider.keeps is not None for provider, _ in self.used.values())

    def start(self, stage: object, memories: Memories) -> None:
        """Make what the providers keep; in a resumed run `memories` restores it at once."""
        for name, (provider, method) in self.used.items():
            if provider.keeps is not None:
                self.keepers[name] = memories.keep(name, provider.keeps(stage, method))

    def fill(self, stage: object, batch: StepBatch, methods: Iterable[Bound]) -> None:
        """Put into the batch what these methods, which act on rollouts, need: fields that have a provider and are not there yet.

        Called on every rank alike: a provider may gather, and may make passes of the model.
        """
        x = batch.x
        for name in (name for method in methods for name in method.needs):
            if name in self.used and has_axis(name, "N") and name not in x.provided:
                provider, method = self.used[name]
                found = provider.fetch(stage, batch, method)
                values = {field: _everywhere(batch.mine, value, len(x.reward_N)) for field, value in found.items()}
                x = dataclasses.replace(x, provided={**x.provided, **values})
        batch.x = x

    def of_minibatch(self, stage: object, batch: Any) -> dict[str, torch.Tensor]:
        """Fetch what methods that act on a micro-batch need, for the rows of a minibatch.

        Returns:
            Field -> [N] or [N, T].
        """
        out: dict[str, torch.Tensor] = {}
        for name, (provider, method) in self.used.items():
            if has_axis(name, "B") and name not in out:
                out |= provider.fetch(stage, batch, method)
        return out


def _everywhere(mine: torch.Tensor, values: torch.Tensor, rows: int) -> torch.Tensor:
    """Values of all ranks' rows from those of this rank's: [n, ...] -> [N, ...]; tokens are padded with zeros to the longest."""
    parts = dist.gather((mine, values))
    tail = [max(part.shape[axis] for _, part in parts) for axis in range(1, values.ndim)]
    out = torch.zeros((rows, *tail), dtype=values.dtype)
    # each rank's rows at their places among all; T is that of its own longest answer
    for places, part in parts:
        out[(places, *(slice(0, size) for size in part.shape[1:]))] = part
    return out
