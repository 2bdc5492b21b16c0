"""What a family without code of its own here is asked for. An optional part trains it through its own processor and its own forward, and
what a recipe may ask for is narrowed to what is proven there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch

from vlmrl.families.base import Family
from vlmrl.policy.model import Policy, ProcessorBundle
from vlmrl.policy.vision import VisionCache
from vlmrl.protocols import RolloutEngine
from vlmrl.types import GenerationSettings, Request, Rollout


class ForeignEngine(RolloutEngine, Protocol):
    """Generates with the policy in place."""

    def followed(
        self, requests: Sequence[Request], settings: GenerationSettings, look: Callable[[int, int, int, float], bool]
    ) -> list[list[Rollout]]:
        """Generate as `generate` does. `look(request, place of the answer, token, log-prob)` is asked after each token whether the answer
        goes on."""
        ...


class ForeignFamily(Family, Protocol):
    """A family whose `own_code` is False."""

    def bundle(self, processor: Any, path: str) -> ProcessorBundle:
        """Make what encoding needs of the family, from the processor that was found at `path`.

        Raises:
            ConfigError: the processor does not say enough.
        """
        ...

    def policy(self, model: Any, bundle: ProcessorBundle, *, device: torch.device, compute: torch.dtype) -> Policy:
        """Make a policy of a loaded model: with a `subject` and layouts of its own, or one that the core's own forward runs."""
        ...

    def engine(self, policy: Policy, vision: VisionCache, *, max_num_seqs: int) -> ForeignEngine:
        """Make the engine that generates with a policy that has a `subject`. `max_num_seqs`: most answers that decode at a time."""
        ...

    def unproven(self, cfg: Any) -> list[str]:
        """List what a recipe asks for and the family is not proven with, each with what to do."""
        ...

    def training_layout(self, policy: Policy, asked: str, *, recomputes: bool) -> tuple[str, str]:
        """Choose the layout that trains. All give the same log-probs; what differs is cost.

        Args:
            recomputes: whether layers are computed again in the backward pass, under which a cache is dropped.

        Returns:
            (layout, why it is not the one asked for, or nothing).
        """
        ...


def foreign(family: Family) -> ForeignFamily:
    """Narrow a family without code of its own to the protocol that such families have."""
    assert not family.own_code
    return cast(ForeignFamily, family)


def unproven(family: Family, cfg: Any) -> list[str]:
    """List what a recipe asks for and the family is not proven with, each with what to do; nothing for one with code of its own."""
    if not family.own_code:
        return foreign(family).unproven(cfg)
    asked = [stage.name for stage in cfg.stages if getattr(getattr(stage, "rollout", None), "router_replay", False)]
    return [f"stages.{name}.rollout.router_replay: a '{family.name}' model has no routers; take it out" for name in asked]
