"""What a claim is made of: regimes (a world, a model and the common part of all runs), arms, and a question of `vlmrl study`.

An arm is a regime's RL stage with the named changes; everything else, and the rows, are the same for all arms of a regime. Arms are shared
between claims, and with them their runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmrl.extras.study.spec import Comparison, Condition, Premise
from vlmrl.extras.study.tables import arms_of

Stage = dict[str, Any]
Change = Callable[[Stage], Stage]


def changed(**changes: Any) -> Change:
    """The stage with top-level fields replaced; a field that is None in the changes is removed."""

    def change(stage: Stage) -> Stage:
        out = copy.deepcopy(stage) | {key: copy.deepcopy(value) for key, value in changes.items() if value is not None}
        return {key: value for key, value in out.items() if changes.get(key, value) is not None}

    return change


def as_it_is(stage: Stage) -> Stage:
    return copy.deepcopy(stage)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train from a regime's start."""

    name: str
    change: Change = as_it_is
    """From the regime's RL stage to this arm's."""
    start: str | None = None
    """Fine-tuned model that it starts from (a key of `Regime.starts`); None: the base model."""
    seeds: int | None = None
    """Only the first so many, for arms that serve a premise or a further condition; None: all of the regime."""
    records: bool = False
    """Whether the rewards of each step are written down, for mechanisms on identical groups."""


@dataclass(frozen=True, kw_only=True)
class Regime:
    """A world, a tiny model, and what all runs in it share."""

    name: str
    text: str
    """World, model and sizes, for the plan."""
    recipe: str
    settings: tuple[str, ...]
    """Overrides of the recipe for every run."""
    rl: Stage
    """Fields of the recipe's RL stage that are replaced for all arms."""
    arms: tuple[Arm, ...]
    every: int
    """RL steps between two evaluations on the held-out questions."""
    questions: int
    """Held-out questions: one answer more or less moves a mean by 1 / questions."""
    seeds: int
    starts: Mapping[str, Change] = field(default_factory=dict)
    """Name -> change of the recipe's SFT stage."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Kind of run (`base`, `start`, `arm`) -> seconds that one was measured or, before any was, is assumed to take with one thread."""

    def arm(self, name: str) -> Arm:
        """Raises KeyError: no such arm."""
        found = {arm.name: arm for arm in self.arms}
        if name not in found:
            raise KeyError(f"regime '{self.name}' has no arm '{name}'; known: {', '.join(found)}")
        return found[name]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says, and how it is decided here."""

    id: str
    title: str
    paper: str
    methods: tuple[str, ...]
    """Registered methods that it is about, as `slot name`."""
    says: str
    """What the paper claims, in our words."""
    regime: str
    premises: tuple[Premise, ...]
    primary: Comparison
    """What decides."""
    secondary: tuple[Condition, ...] = ()
    shown: tuple[str, ...] = ()
    """Further measures in its table."""

    @property
    def comparison(self) -> Comparison:
        """The claim as a question of a study."""
        return self.primary.model_copy(
            update={"name": self.id, "premises": self.premises, "secondary": self.secondary, "shown": self.shown}
        )

    def arms(self) -> list[str]:
        """All arms that its numbers come from, in the order in which they are named."""
        return arms_of(self.comparison)
