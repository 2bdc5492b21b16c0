"""A method lies in `vlmrl/zoo` if and only if it is not core, by what was counted in the repository."""

from __future__ import annotations

from collections import defaultdict

from vlmrl.cards import card
from vlmrl.methods import registries

HELD = {
    "vlmrl.rewards.answer_score": "reward `accuracy`, which is core, calls it",
    "vlmrl.rewards.choice": "reward `accuracy`, which is core, calls it",
    "vlmrl.rewards.ocr": "reward `accuracy`, which is core, calls it",
    "vlmrl.rewards.open_rouge": "reward `accuracy`, which is core, calls it",
    "vlmrl.rewards.segmentation": "reward `accuracy`, which is core, calls it",
    "vlmrl.rewards.tracking": "reward `accuracy`, which is core, calls it",
    "vlmrl.rewards.lists": "the provider of `item_BT` reads lists with it",
    "vlmrl.rollout.strategy.demonstration": "the strategies' own package names it",
    "vlmrl.rollout.strategy.hint": "the strategies' own package names it",
}
"""Modules without a core method that stay, and why."""


def methods_by_module() -> dict[str, list[bool]]:
    """Module -> whether each of its methods is core."""
    out: dict[str, list[bool]] = defaultdict(list)
    for slot, registry in registries().items():
        if slot != "environment":
            for name in registry.names():
                out[registry.get(name).function.__module__].append(bool(card(slot, name).core))
    return out


def test_the_zoo_holds_what_is_not_core() -> None:
    for module, core in methods_by_module().items():
        if module.startswith("vlmrl.zoo."):
            assert not any(core), f"{module} has a core method: move it to its slot's folder in the core"
        elif module.startswith("vlmrl.") and module not in HELD:
            assert any(core), f"{module} has no core method: move it to vlmrl/zoo"


def test_what_is_held_is_there() -> None:
    assert set(HELD) <= set(methods_by_module())
