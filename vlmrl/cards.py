"""Evidence cards of methods: why one is core, what of its source was read, what stands behind it, and when it pays.

Two files. `cards.yaml` is written by hand: what was read, when a method pays, why a guess stays. `evidence.json` is what can be counted in
the repository: `scripts/evidence.py` writes it from recipes, claims, kits, the glossary and the tests of agreement. Both name methods by
slot and name, wherever their modules lie.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

CARDS, EVIDENCE = (Path(__file__).parent / name for name in ("cards.yaml", "evidence.json"))
CORE = "Core: the default of its slot, or named by a recipe or a claim, or offered by TRL or verl."
OTHERS = "Other methods: where nothing stands under evidence, only tests with numbers by hand do, or the method is a plug-in's."
"""Heads of the two parts of a slot's methods."""
Read = Literal["code", "text", "notes", "abstract"]


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is known of a method beside its code. Empty where nothing is."""

    core: tuple[str, ...] = ()
    """Why it is core: `default` of a slot, `recipe`, `claim`, `TRL`, `verl`. Empty: it is not."""
    read: Read | None = None
    """The best source that was read; None for what has no paper."""
    claims: Mapping[str, str] | None = None
    """Claim of docs/benchmarks/claims.md that is about it -> its verdict."""
    kits: tuple[str, ...] = ()
    """Kits of docs/reproduce whose recipe uses it."""
    recipes: tuple[str, ...] = ()
    """Shipped recipes that use it."""
    agrees: tuple[str, ...] = ()
    """Trainers that a test found to give the same numbers."""
    pays: str | None = None
    """When it pays, with the page that says so."""
    stays: str | None = None
    """Why a method that is partly a guess is still there."""

    @property
    def evidence(self) -> str:
        """One line of what stands behind it; empty where it is tests with numbers computed by hand, and no more."""
        said = [f"claim {name}: {verdict}" for name, verdict in (self.claims or {}).items()]
        said += [f"same numbers as {' and '.join(self.agrees)}"] if self.agrees else []
        said += [f"kit{'s' * (len(self.kits) > 1)} {', '.join(self.kits)}"] if self.kits else []
        others = [name for name in self.recipes if name not in self.kits]
        said += [f"recipe {others[0]}" if len(others) == 1 else f"{len(others)} {'further ' * bool(self.kits)}recipes"] if others else []
        return "; ".join(said)

    @property
    def said(self) -> str:
        """The evidence, when it pays, and why a guess stays: what tables say of it."""
        parts = [self.evidence, self.pays and f"pays: {self.pays}", self.stays and f"stays: {self.stays}"]
        return "; ".join(part for part in parts if part)

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"claims": dict(self.claims or {})}


@functools.cache
def cards() -> Mapping[tuple[str, str], Card]:
    """(slot, name) -> card, of all methods that either file names."""
    by_hand: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(CARDS.read_text(encoding="utf-8"))
    counted: dict[str, dict[str, dict[str, Any]]] = json.loads(EVIDENCE.read_text(encoding="utf-8"))
    lists = ("core", "kits", "recipes", "agrees")
    out: dict[tuple[str, str], Card] = {}
    for slot in {**by_hand, **counted}:
        hand, count = by_hand.get(slot, {}), counted.get(slot, {})
        for name in {**hand, **count}:
            facts = {key: tuple(value) if key in lists else value for key, value in count.get(name, {}).items()}
            out[slot, name] = Card(**facts, **hand.get(name, {}))
    return out


def card(slot: str, name: str) -> Card:
    """The card of a method; an empty one where neither file names it: there is no paper and nothing was counted, or it is a plug-in's."""
    return cards().get((slot, name), Card())


def argument_line(argument: Mapping[str, Any]) -> str:
    """`epsilon: float = 0.0001`, with the default as a recipe writes it."""
    default = f" = {json.dumps(argument['default'], ensure_ascii=False)}" if "default" in argument else ""
    return f"{argument['name']}: {argument['type']}{default}"
